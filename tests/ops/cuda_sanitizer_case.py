"""Every CUDA kernel once, for `compute-sanitizer --tool memcheck` and `--tool racecheck`; ends with "clean".

Run with PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that every tensor is a block of its own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from rule_cases import GRADS, LOW, RULES, Data, split_twin

from dslaunch.engine.ops import FusedAdamW
from dslaunch.engine.ops.norm import sum_of_squares
from dslaunch.engine.ops.step import step_

SIZES = (0, 1, 3, 1023, 1024, 1025, 20_001)


def main() -> None:
    gpu = torch.device("cuda", 0)
    for rule in RULES.values():
        for grad in GRADS:
            for low in LOW:
                for offset in (0, 1):
                    data = Data(rule(1), SIZES, (grad, low), gpu, offset, margin=0)
                    data.new_gradients()
                    step_(rule(1), data.shards)
                    step_(rule(2), data.shards[-1:])
                    sum_of_squares([shard.grad for shard in data.shards])
                    sum_of_squares([data.shards[-1].grad])
                    if low == torch.bfloat16 and not rule(1).whole_tensors:
                        step_(rule(3), [split_twin(shard, offset) for shard in data.shards])
    p = torch.nn.Parameter(torch.zeros(5, device=gpu))
    p.grad = torch.ones_like(p)
    FusedAdamW([p], capturable=True).step()
    for low in LOW:
        for offset in (0, 1):
            for shard in Data(RULES["adamw"](1), SIZES, (torch.bfloat16, low), gpu, offset, margin=0).shards:
                states = tuple(state.bfloat16() for state in shard.states)
                step_(RULES["adamw"](1), [replace(shard, states=states)])
    torch.cuda.synchronize()
    print("clean")


if __name__ == "__main__":
    main()
