"""The fused optimizers: torch.optim's interface, fp32, bf16 and fp16 parameters, CPU and CUDA, no engine."""

from __future__ import annotations

import math
from typing import cast

import torch

from dslaunch.engine.ops.adagrad import AdagradStep
from dslaunch.engine.ops.adamw import AdamWStep
from dslaunch.engine.ops.fused_optimizer import FusedOptimizer, Group, Params, State, lr_on_gpu
from dslaunch.engine.ops.lamb import LambStep
from dslaunch.engine.ops.lion import LionStep
from dslaunch.engine.ops.sgd import SgdMomentumStep, SgdStep


class FusedAdamW(FusedOptimizer):
    """torch.optim.AdamW, or torch.optim.Adam with `adam_w_mode=False`; without amsgrad.

    `moment_dtype=torch.bfloat16` keeps both moments in bf16, 4 bytes a parameter instead of 8, rounded at
    random so that they are right on average (stochastic.py).
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        adam_w_mode: bool = True,
        bias_correction: bool = True,
        maximize: bool = False,
        capturable: bool = False,
        moment_dtype: torch.dtype = torch.float32,
    ) -> None:
        _expect(lr=lr, eps=eps, weight_decay=weight_decay)
        _expect_betas(betas)
        if moment_dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"expects moment_dtype torch.float32 or torch.bfloat16 but got {moment_dtype}")
        defaults: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {
            "moment_dtype": moment_dtype,
            "decoupled_weight_decay": adam_w_mode,
            "bias_correction": bias_correction,
        }
        super().__init__(
            params, {**defaults, "amsgrad": False, "maximize": maximize, "capturable": capturable}
        )

    def rule(self, group: Group, step: int, first: bool) -> AdamWStep:
        if group.get("amsgrad"):
            raise ValueError("FusedAdamW expects amsgrad=False but got True")
        beta1, beta2 = cast("tuple[float, float]", group["betas"])
        return AdamWStep(
            max(step, 1),
            _lr(group),
            beta1,
            beta2,
            _number(group, "eps"),
            _number(group, "weight_decay"),
            bool(group.get("decoupled_weight_decay", True)),
            bool(group.get("bias_correction", True)),
        )


class FusedLion(FusedOptimizer):
    """Lion (Chen et al. 2023). Its steps are signs: take a learning rate 3 to 10 times below AdamW's."""

    state_names = ("exp_avg",)
    counts_steps = False

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        _expect(lr=lr, weight_decay=weight_decay)
        _expect_betas(betas)
        defaults: Group = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize, "capturable": capturable})

    def rule(self, group: Group, step: int, first: bool) -> LionStep:
        beta1, beta2 = cast("tuple[float, float]", group["betas"])
        return LionStep(_lr(group), beta1, beta2, _number(group, "weight_decay"))


class FusedAdagrad(FusedOptimizer):
    """torch.optim.Adagrad, for dense gradients."""

    state_names = ("sum",)

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        start = initial_accumulator_value
        _expect(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps, initial_accumulator_value=start)
        defaults: Group = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"initial_accumulator_value": start, "maximize": maximize, "capturable": capturable}
        super().__init__(params, defaults)

    def new_states(self, group: Group, master: torch.Tensor) -> State:
        start = _number(group, "initial_accumulator_value")
        return {"sum": torch.full_like(master, start, dtype=torch.float32)}

    def rule(self, group: Group, step: int, first: bool) -> AdagradStep:
        return AdagradStep(
            max(step, 1),
            _lr(group),
            _number(group, "lr_decay"),
            _number(group, "eps"),
            _number(group, "weight_decay"),
        )


class FusedSGD(FusedOptimizer):
    """torch.optim.SGD."""

    state_names = ("momentum_buffer",)
    counts_steps = False

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        _expect(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov expects a momentum and no dampening")
        defaults: Group = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        defaults |= {"weight_decay": weight_decay, "maximize": maximize, "capturable": capturable}
        super().__init__(params, defaults)

    def states_of(self, group: Group) -> tuple[str, ...]:
        return self.state_names if group["momentum"] else ()

    def rule(self, group: Group, step: int, first: bool) -> SgdStep | SgdMomentumStep:
        lr, weight_decay = _lr(group), _number(group, "weight_decay")
        if not group["momentum"]:
            return SgdStep(lr, weight_decay)
        return SgdMomentumStep(
            lr,
            weight_decay,
            _number(group, "momentum"),
            _number(group, "dampening"),
            bool(group["nesterov"]),
            first,
        )


class FusedLamb(FusedOptimizer):
    """LAMB (You et al. 2020): Adam's direction, each tensor's step as long as `lr` times the tensor."""

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        max_trust: float = math.inf,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        _expect(lr=lr, eps=eps, weight_decay=weight_decay, max_trust=max_trust)
        _expect_betas(betas)
        defaults: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"max_trust": max_trust, "maximize": maximize, "capturable": capturable}
        super().__init__(params, defaults)

    def rule(self, group: Group, step: int, first: bool) -> LambStep:
        beta1, beta2 = cast("tuple[float, float]", group["betas"])
        return LambStep(
            max(step, 1),
            _lr(group),
            beta1,
            beta2,
            _number(group, "eps"),
            _number(group, "weight_decay"),
            _number(group, "max_trust"),
        )


def _number(group: Group, name: str) -> float:
    return float(cast("float | torch.Tensor", group[name]))


def _lr(group: Group) -> float:
    """0 where the learning rate is on the GPU, where it stays."""
    return _number(group, "lr") if lr_on_gpu(group) is None else 0.0


def _expect(**values: float | torch.Tensor) -> None:
    for name, value in values.items():
        if not isinstance(value, torch.Tensor) and not value >= 0:
            raise ValueError(f"expects {name} >= 0 but got {value}")


def _expect_betas(betas: tuple[float, float]) -> None:
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"expects betas in [0, 1) but got {betas}")
