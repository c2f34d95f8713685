"""The models and loops that cases of sharded training share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import dslaunch.engine as deepspeed
from dslaunch.engine import verdict

WIDTH = 16


class Block(torch.nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.Tanh(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Model(torch.nn.Module):
    """Blocks in a list; an embedding read as a tensor; a head tied to it."""

    def __init__(self, num_blocks: int = 4, recompute: bool | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, width)
        self.place = torch.nn.Embedding(8, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = torch.nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.ones(width))
        self.recompute = recompute  # use_reentrant of checkpoints; None: none

    def forward(self, ids: torch.Tensor, skip: int | None = None) -> torch.Tensor:
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        for number, block in enumerate(self.blocks):
            if number == skip:
                continue
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        logits = self.head(x * self.scale)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def config(stage: int = 3, **more: object) -> dict[str, object]:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 20, "reduce_bucket_size": 2000}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {**zero, **more.pop("zero", {})},  # type: ignore[dict-item]
        "log_level": "error",
        **more,
    }


def engine_of(model: torch.nn.Module, stage: int = 3, **more: object) -> deepspeed.Engine:
    return deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(stage, **more)
    )[0]


def batch(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number * 7 + dist.get_rank())
    return torch.randint(0, 32, (2, 8), generator=generator)


def train(engine: deepspeed.Engine, steps: int = 3, start: int = 0) -> list[float]:
    losses = []
    for number in range(start, start + steps):
        loss = engine(batch(number))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def whole(engine: deepspeed.Engine) -> dict[str, torch.Tensor]:
    with deepspeed.zero.GatheredParameters(engine.module.parameters()):
        return {name: param.detach().clone() for name, param in engine.module.named_parameters()}


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 2e-6) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name] - b[name]).abs().max().item() < tolerance, name


def twins(build: Callable[[], torch.nn.Module]) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(3)
    first = build()
    torch.manual_seed(3)
    return first, build()


def same_as_stage_0(build: Callable[[], torch.nn.Module], **more: object) -> deepspeed.Engine:
    """Train both; returns the stage-3 engine."""
    first, second = twins(build)
    plain, sharded = engine_of(first, 0, **more), engine_of(second, 3, **more)
    assert train(plain) == pytest.approx(train(sharded), abs=2e-6)
    assert_close(whole(plain), whole(sharded))
    assert live_numel(sharded) == 0
    return sharded


def live_numel(engine: deepspeed.Engine) -> int:
    """Elements of sharded buckets that are gathered now."""
    return sum(
        bucket.params.untyped_storage().size() // bucket.params.element_size()
        for bucket in engine.placement.sharded
    )


@contextmanager
def late_verdicts() -> Iterator[None]:
    """Let the engines made inside believe that the CPU runs behind the host, as GPUs do."""
    verdict.LATE_DEVICES.append("cpu")
    try:
        yield
    finally:
        verdict.LATE_DEVICES.remove("cpu")
