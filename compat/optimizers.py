"""The fused optimizers under DeepSpeed's names and with its arguments. None of them needs a compiler."""

from __future__ import annotations

import torch

from dslaunch.engine.ops import optimizers
from dslaunch.engine.ops.fused_optimizer import Params
from dslaunch.engine.ops.optimizers import FusedAdagrad, FusedAdamW

Betas = tuple[float, float]


class FusedAdam(FusedAdamW):
    """`deepspeed.ops.adam.FusedAdam`: decoupled weight decay unless `adam_w_mode` is false."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        super().__init__(
            *(params, lr, betas, eps, weight_decay),
            adam_w_mode=adam_w_mode,
            bias_correction=bias_correction,
        )
        self.adam_w_mode = int(adam_w_mode)
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(FusedAdamW):
    """`deepspeed.ops.adam.DeepSpeedCPUAdam`; it steps wherever its parameters are."""

    def __init__(
        self,
        model_params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("DeepSpeedCPUAdam does not support the AMSGrad variant.")
        super().__init__(
            *(model_params, lr, betas, eps, weight_decay),
            adam_w_mode=adamw_mode,
            bias_correction=bias_correction,
            moment_dtype=torch.float32 if fp32_optimizer_states else torch.bfloat16,
        )
        self.adam_w_mode = self.adamw_mode = adamw_mode
        self.fp32_optimizer_states = fp32_optimizer_states


class DeepSpeedCPULion(optimizers.FusedLion):
    """`deepspeed.ops.lion.DeepSpeedCPULion`; it steps wherever its parameters are."""

    def __init__(
        self,
        model_params: Params,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay)


class FusedLion(DeepSpeedCPULion):
    """`deepspeed.ops.lion.FusedLion`."""


class DeepSpeedCPUAdagrad(FusedAdagrad):
    """`deepspeed.ops.adagrad.DeepSpeedCPUAdagrad`."""

    def __init__(
        self,
        model_params: Params,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, 0.0, weight_decay, 0.0, eps)


class FusedLamb(optimizers.FusedLamb):
    """`deepspeed.ops.lamb.FusedLamb`; the trust ratio has its upper bound, and no lower one."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        unsupported = {
            "bias_correction": not bias_correction,
            "eps_inside_sqrt": eps_inside_sqrt,
            "amsgrad": amsgrad,
            "max_grad_norm": max_grad_norm,
        }
        for name, given in unsupported.items():
            if given:
                raise RuntimeError(f"FusedLamb: {name} is not supported; leave it at its default")
        super().__init__(params, lr, betas, eps, weight_decay, max_trust=max_coeff)
