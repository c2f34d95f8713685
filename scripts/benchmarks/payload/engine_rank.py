"""One rank of the engine benchmark: trains one model under every subject in turn, prints times as JSON.

Subjects: `ddp`, `fsdp2`, `stage0` to `stage3` (dslaunch.engine), `deepspeed1` to `deepspeed3`, the keys of
OFFLOADS, and `limit`: forward and backward alone with parameters in the compute dtype.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from exposed import exposed_share  # type: ignore[import-not-found,unused-ignore]
from gpt import Gpt, Shape, Tiny  # type: ignore[import-not-found,unused-ignore]
from own_host import choose_device  # type: ignore[import-not-found,unused-ignore]
from timeline import timeline  # type: ignore[import-not-found,unused-ignore]

HYPER: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

ON_HOST = {"device": "cpu", "pin_memory": True}
OFFLOADS: dict[str, dict[str, object]] = {  # zero_optimization
    "offload": {"stage": 2, "offload_optimizer": ON_HOST},
    "offload-eager": {"stage": 2, "offload_optimizer": ON_HOST},
    "offload-late": {"stage": 2, "offload_optimizer": ON_HOST},
    "offload-eager-late": {"stage": 2, "offload_optimizer": ON_HOST},
    "offload-half": {"stage": 2, "offload_optimizer": {**ON_HOST, "ratio": 0.5}},
    "offload-params": {"stage": 3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST},
    "offload-params-late": {"stage": 3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST},
    "offload-low-late": {"stage": 2, "offload_optimizer": ON_HOST},
    "deepspeed-offload": {"stage": 2, "offload_optimizer": ON_HOST},
}

Step = Callable[[torch.Tensor], torch.Tensor]


def engine_step(model: torch.nn.Module, engine_module: Any, subject: str, dtype: str, micro: int) -> Step:
    zero: dict[str, object] = OFFLOADS.get(subject) or {"stage": int(subject[-1])}
    zero = {**zero, "overlap_comm": True}
    if isinstance(model, Tiny):
        zero["stage3_param_persistence_threshold"] = 0
    config: dict[str, object] = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {**HYPER, "betas": list(HYPER["betas"])}},
        "zero_optimization": zero,
        "log_level": "error",
    }
    if "-low" in subject:
        config["optimizer"]["params"]["moment_dtype"] = "bf16"  # type: ignore[index]
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    if subject.startswith("offload-eager"):  # nothing has to be known of all gradients before the first step
        config |= {"gradient_clipping": 0.0, "bf16": {"enabled": True, "check_grad_overflow": False}}
    # The next forward waits for the host block by block.
    os.environ["DSLAUNCH_OVERLAP_GATHER"] = "1" if subject.endswith("-late") else "0"
    engine = engine_module.initialize(model=model, model_parameters=model.parameters(), config=config)[0]

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = engine(ids)
        engine.backward(loss)
        engine.step()
        return loss

    return step


def torch_step(model: torch.nn.Module, how: str, dtype: torch.dtype, device: torch.device) -> Step:
    net: Any = model
    if how == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        half = dtype != torch.float32
        policy = MixedPrecisionPolicy(param_dtype=dtype if half else None, reduce_dtype=torch.float32)
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True, **HYPER)

    def step(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, dtype=dtype, enabled=how == "ddp" and dtype != torch.float32):
            loss: torch.Tensor = net(ids)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def limit_step(model: torch.nn.Module, dtype: torch.dtype) -> Step:
    model.to(dtype)

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(ids)
        loss.backward()  # type: ignore[no-untyped-call]
        for param in model.parameters():
            param.grad = None
        return loss

    return step


def make(subject: str, build: Callable[[], torch.nn.Module], dtype: str, micro: int, device: Any) -> Step:
    torch.manual_seed(0)
    model = build()
    if subject.startswith(("stage", "offload")):
        import dslaunch.engine as engine_module

        return engine_step(model, engine_module, subject, dtype, micro)
    if subject.startswith("deepspeed"):
        import deepspeed  # type: ignore[import-not-found,unused-ignore]

        return engine_step(model, deepspeed, subject, dtype, micro)
    model.to(device)
    if subject == "limit":
        return limit_step(model, DTYPES[dtype])
    return torch_step(model, subject, DTYPES[dtype], device)


def timed(step: Step, ids: torch.Tensor, device: torch.device) -> tuple[float, float]:
    """(wall, CPU) milliseconds of one step."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()
    started, cpu = time.perf_counter(), time.process_time()
    step(ids)
    spent = time.process_time() - cpu
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3, spent * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--subjects", required=True)
    parser.add_argument("--shape", default="4,256,4,8192,256,2", help="layers,width,heads,vocab,seq,micro")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--out", type=Path, help="rank 0 writes what it found here instead of to stdout")
    options = parser.parse_args()
    shape = Shape(*(int(part) for part in options.shape.split(",")))
    device = choose_device()
    cuda = device.type == "cuda"
    if not cuda:
        torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    ids = torch.randint(0, shape.vocab, (shape.micro, shape.seq), generator=generator).to(device)

    def build() -> torch.nn.Module:
        with torch.device(device):
            model: torch.nn.Module = Tiny() if options.tiny else Gpt(shape)
        return model

    found: dict[str, dict[str, object]] = {}
    for subject in options.subjects.split(","):
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step = make(subject, build, options.dtype, shape.micro, device)
        losses = [step(ids).item() for _ in range(options.warmup)]
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        samples = [timed(step, ids, device) for _ in range(options.steps)]
        found[subject] = {
            "ms": [wall for wall, _ in samples],
            "cpu_ms": [cpu for _, cpu in samples],
            "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "exposed": exposed_share(step, ids) if cuda and dist.get_world_size() > 1 else None,
            "timeline": timeline(step, ids) if cuda and subject in OFFLOADS else None,
            "losses": losses,
        }
        if dist.get_rank() == 0:
            print(subject, json.dumps(found[subject]), file=sys.stderr, flush=True)
        del step
    if dist.get_rank() == 0:
        if options.out is None:
            print(json.dumps(found), flush=True)
        else:
            options.out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
