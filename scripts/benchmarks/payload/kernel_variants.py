"""AdamW's CUDA kernels as they are, and with one branch around all loads: their speeds, interleaved, as JSON.

Also whether a variant gives the bits of the kernels in use, and the same bits however a shard is cut.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from benchmarks.ops_jobs import STEP, Bench, Buffers, decoder_sizes

from dslaunch.engine.ops import FusedAdamW, artifacts, cuda_modules
from dslaunch.engine.ops.adamw import AdamWShard, adamw_
from dslaunch.engine.ops.cuda_driver import driver
from dslaunch.engine.ops.nvrtc import nvrtc

SOURCE = Path(__file__).with_name("adamw_one_branch.cu")
IN_USE = "in use"
VARIANTS = {
    "one branch, by thread": "#define ONE_BRANCH 1\n",
    "one branch, by block": "#define ONE_BRANCH 2\n",
    "one branch, by thread, 6 blocks": "#define ONE_BRANCH 1\n#define MIN_BLOCKS 6\n",
}
ROUNDS = 9
Functions = dict[tuple[str, str, int], object]


def compiled(defines: str) -> Functions:
    """The variant's kernels under the names of those in use, as cuda_modules keeps them."""
    major, minor = torch.cuda.get_device_capability(0)
    with tempfile.TemporaryDirectory() as folder:
        for header in artifacts.SOURCES.glob("*.h"):
            (Path(folder) / header.name).write_bytes(header.read_bytes())
        source = Path(folder) / SOURCE.name
        source.write_text(defines + SOURCE.read_text())
        module = driver().load(nvrtc().cubin(source, f"sm_{major}{minor}"), 0)
    names = [f"adamw_{grad}_{out}" for grad in (1, 2, 3) for out in (0, 2, 3)]
    return {("adamw", name, 0): driver().function(module, name) for name in names}


def masters_after(functions: Functions, cuts: list[int]) -> torch.Tensor:
    """Five steps of one shard, cut there."""
    cuda_modules._functions = functions  # type: ignore[assignment]
    generator = torch.Generator("cuda").manual_seed(3)
    theta, grad = (torch.randn(300_001, generator=generator, device="cuda") for _ in "tg")
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for _ in range(5):
        for low, high in zip([0, *cuts], [*cuts, len(theta)], strict=True):
            part = slice(low, high)
            adamw_(AdamWShard(theta[part], m[part], v[part], grad[part], None), STEP, None)
    return theta


def jobs(bench: Bench, numel: int) -> Mapping[str, tuple[Callable[[], object], int]]:
    """What is timed, and the bytes it moves."""
    sizes = decoder_sizes(numel)
    params = [torch.nn.Parameter(torch.randn(size, device="cuda")) for size in sizes]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = FusedAdamW(params, lr=1e-3)
    return {
        "fp32 flat": (Buffers(bench, numel, False).ours(), 28 * numel),
        "bf16 flat": (Buffers(bench, numel, True).ours(), 28 * numel),
        f"{len(sizes)} tensors": (optimizer.step, 28 * sum(sizes)),
    }


def main() -> None:
    numel = int(float(sys.argv[1])) if len(sys.argv) > 1 else 300_000_000
    bench = Bench(torch.device("cuda", 0), huge=False)
    in_use: Functions = cuda_modules._functions  # type: ignore[assignment]
    whole = masters_after(in_use, [])
    found = {IN_USE: in_use, **{name: compiled(defines) for name, defines in VARIANTS.items()}}
    bits = {
        name: {
            "as in use": torch.equal(whole, masters_after(functions, [])),
            "however cut": torch.equal(
                masters_after(functions, []), masters_after(functions, [1, 4099, 70_002])
            ),
        }
        for name, functions in found.items()
    }
    source, target = (torch.empty(numel, device="cuda") for _ in "st")
    speeds: dict[str, dict[str, list[float]]] = {}
    for job, (step, num_bytes) in jobs(bench, numel).items():
        for number in range(-1, ROUNDS):
            copy_speed = 8 * numel / bench.time(lambda: target.copy_(source))
            for name, functions in found.items():
                cuda_modules._functions = functions  # type: ignore[assignment]
                speed = num_bytes / bench.time(step)
                if number >= 0:
                    speeds.setdefault(job, {}).setdefault(name, []).append(speed / copy_speed)
    of_copy = {
        job: {name: statistics.median(ratios) for name, ratios in by_name.items()}
        for job, by_name in speeds.items()
    }
    print(json.dumps({"numel": numel, "of_copy": of_copy, "bits": bits, "samples": speeds}))


if __name__ == "__main__":
    main()
