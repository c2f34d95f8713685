"""Every rule with settings that use all of its terms, and shards to step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dslaunch.engine.ops import FusedAdagrad, FusedAdamW, FusedLamb, FusedLion, FusedSGD
from dslaunch.engine.ops.adagrad import AdagradStep
from dslaunch.engine.ops.adamw import AdamWStep
from dslaunch.engine.ops.lamb import LambStep
from dslaunch.engine.ops.lion import LionStep
from dslaunch.engine.ops.remainder import split_
from dslaunch.engine.ops.sgd import SgdMomentumStep, SgdStep
from dslaunch.engine.ops.shard import Rule, Shard

LR = 0.01
RULES: dict[str, Callable[[int], Rule]] = {
    "adamw": lambda step: AdamWStep(step, LR, 0.9, 0.999, 1e-8, 0.1),
    "adam": lambda step: AdamWStep(step, LR, 0.8, 0.95, 1e-6, 0.1, decoupled=False),
    "lion": lambda step: LionStep(LR, 0.9, 0.99, 0.1),
    "adagrad": lambda step: AdagradStep(step, LR, 0.01, 1e-10, 0.1),
    "sgd": lambda step: SgdStep(LR, 0.1),
    "momentum": lambda step: SgdMomentumStep(LR, 0.1, 0.9, 0.5, first=step == 1),
    "nesterov": lambda step: SgdMomentumStep(LR, 0.1, 0.9, nesterov=True),
    "lamb": lambda step: LambStep(step, LR, 0.9, 0.999, 1e-6, 0.1),
}
Make = Callable[..., torch.optim.Optimizer]
MAKES: dict[str, Make] = {
    "adamw": FusedAdamW,
    "lion": FusedLion,
    "adagrad": FusedAdagrad,
    "sgd": FusedSGD,
    "momentum": lambda params, **options: FusedSGD(params, momentum=0.9, **options),
    "lamb": FusedLamb,
}
LOW = (None, torch.bfloat16, torch.float16)
GRADS = (torch.float32, torch.bfloat16, torch.float16)


class Data:
    """Shards, each `offset` elements into its memory with `margin` behind it, and the same in fp64."""

    def __init__(
        self,
        rule: Rule,
        sizes: tuple[int, ...],
        dtypes: tuple[torch.dtype, torch.dtype | None],
        device: torch.device,
        offset: int = 0,
        margin: int = 64,
    ) -> None:
        self._grad_dtype, low = dtypes
        self.shards, self.exact = [], []
        for numel in sizes:
            theta = torch.randn(numel)
            self.shards.append(
                Shard(
                    _placed(theta, device, offset, margin),
                    tuple(
                        _placed(torch.zeros(numel), device, offset, margin) for _ in range(rule.num_states)
                    ),
                    _placed(torch.zeros(numel, dtype=self._grad_dtype), device, offset, margin),
                    None if low is None else _placed(torch.zeros(numel, dtype=low), device, offset, margin),
                )
            )
            states = tuple(torch.zeros(numel, dtype=torch.float64) for _ in range(rule.num_states))
            self.exact.append(Shard(theta.double(), states, torch.zeros(numel, dtype=torch.float64), None))

    def new_gradients(self) -> None:
        """Fresh random ones, of many magnitudes."""
        for shard, exact in zip(self.shards, self.exact, strict=True):
            magnitude = 10.0 ** torch.empty(exact.grad.shape).uniform_(-3, 1)
            grad = (torch.randn(exact.grad.shape) * magnitude).to(self._grad_dtype)
            shard.grad.copy_(grad)
            exact.grad.copy_(grad)


def split_twin(shard: Shard, offset: int) -> Shard:
    """The same values with the master in two halves, one of them `offset` elements into its memory."""
    assert shard.param is not None
    rest = torch.zeros(shard.master.numel() + offset, dtype=torch.int16, device=shard.master.device)[offset:]
    param = torch.empty_like(shard.param)
    split_(shard.master, param, rest)
    return Shard(rest, tuple(state.clone() for state in shard.states), shard.grad, param)


def _placed(tensor: torch.Tensor, device: torch.device, offset: int, margin: int) -> torch.Tensor:
    room = torch.full((offset + tensor.numel() + margin,), 7.0, dtype=tensor.dtype, device=device)
    view = room[offset : offset + tensor.numel()]
    return view.copy_(tensor)
