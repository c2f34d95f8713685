"""The ZeRO optimizer: AdamW over the flat fp32 shards of this rank.

Legend: `P` elements of a bucket, `S` elements of this rank's shard of it, `W` data-parallel ranks.

step(), in three phases:
  1. finish averaging the gradients (what the hooks sent during backward, and the rest);
  2. the global L2 norm from all shards, the clip factor, and whether the step can be applied at all;
  3. bucket by bucket: AdamW on [S], then start the bucket's all-gather while the next one is being stepped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, Sharding
from dslaunch.engine.errors import EngineError
from dslaunch.engine.ops.adamw import AdamWShard, AdamWStep, adamw_
from dslaunch.engine.param_groups import ParamGroup
from dslaunch.engine.reducer import Reducer


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """What `step` does about the gradient norm."""

    clipping: float  # largest global norm; 0: do not clip
    skip_nonfinite: (
        bool  # read the norm on the host once a step, and leave out steps whose norm is inf or nan
    )


@dataclass(slots=True, eq=False)
class ShardState:
    """The optimizer state of one bucket on this rank."""

    master: torch.Tensor  # [S] fp32; the bucket's own elements where parameters are fp32
    exp_avg: torch.Tensor  # [S] fp32
    exp_avg_sq: torch.Tensor  # [S] fp32


class ShardedAdamW(torch.optim.Optimizer):
    """AdamW or Adam on this rank's shard of every bucket; `param_groups` hold the model's own parameters.

    Edits of `param_groups[i]["lr"]` (and betas, eps, weight_decay) take effect at the next step.
    """

    def __init__(
        self,
        groups: Sequence[ParamGroup],
        buckets: Sequence[Bucket],
        sharding: Sharding,
        reducer: Reducer,
        policy: StepPolicy,
    ) -> None:
        self.buckets = buckets
        self.sharding = sharding
        self.reducer = reducer
        self.policy = policy
        self.shards = [_new_state(bucket) for bucket in buckets]
        self.num_applied = 0  # Adam's t
        self.overflow = False  # the last step was left out
        self._num_groups = len(groups)
        self._norm: torch.Tensor | float | None = None
        super().__init__(cast("list[dict[str, object]]", list(groups)), {})

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Part of construction only; torch's own would import torch._dynamo, over a second of start-up."""
        if len(self.param_groups) == self._num_groups:
            raise EngineError(
                "parameter groups cannot be added after initialize", "pass all groups as model_parameters"
            )
        self.param_groups.append(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Average, clip, update, gather; the gradients are zero afterwards. Collective over all ranks."""
        if closure is not None:
            raise EngineError("step(closure) is not supported", "call backward, then step()")
        self.reducer.finish()
        norm = self._global_norm()
        scale = self._clip_scale(norm)
        self._norm = norm
        self.overflow = False
        if self.policy.skip_nonfinite:
            # The one host read of a step: the scheduler must know at once whether this step counts.
            self._norm = norm.item()
            self.overflow = not math.isfinite(self._norm)
        if not self.overflow:
            self._update(scale)
        self.zero_grad()
        self.reducer.reset()

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zero all gradients. They stay views into the buckets, so `set_to_none` has no effect."""
        for bucket in self.buckets:
            bucket.clear_gradients()

    def global_norm(self) -> float | None:
        """The L2 norm of the last step's mean gradient, before clipping; None before the first step."""
        return self._norm.item() if isinstance(self._norm, torch.Tensor) else self._norm

    def publish(self) -> None:
        """Write the masters to the parameters, on all ranks. Collective."""
        pending = []
        for bucket, state in zip(self.buckets, self.shards, strict=True):
            if state.master.dtype != bucket.params.dtype:
                bucket.param_shard.copy_(state.master)
            if self.sharding.num_shards > 1:
                pending.append(collectives.all_gather(bucket.params, bucket.param_shard))
        for work in pending:
            work.wait()

    def refresh_masters(self) -> None:
        """Take the masters anew from the parameters, after something else has written those."""
        for bucket, state in zip(self.buckets, self.shards, strict=True):
            if state.master.dtype != bucket.params.dtype:
                state.master.copy_(bucket.param_shard)

    def state_dict(self) -> dict[str, object]:
        """Refused: one rank's shard alone cannot be resumed from."""
        raise EngineError(
            "optimizer.state_dict() would hold this rank's shard only",
            "use engine.save_checkpoint on every rank",
        )

    def load_state_dict(self, state_dict: object) -> None:
        """Refused, see `state_dict`."""
        raise EngineError(
            "optimizer.load_state_dict() is not supported", "use engine.load_checkpoint on every rank"
        )

    def _update(self, scale: torch.Tensor | None) -> None:
        self.num_applied += 1
        steps = [_step_of(group, self.num_applied) for group in self.param_groups]
        pending = []
        for bucket, state in zip(self.buckets, self.shards, strict=True):
            shard = AdamWShard(
                state.master,
                state.exp_avg,
                state.exp_avg_sq,
                bucket.grad_shard,
                bucket.param_shard if state.master.dtype != bucket.params.dtype else None,
            )
            adamw_(shard, steps[bucket.spec.group], scale)
            if self.sharding.num_shards > 1:
                pending.append(collectives.all_gather(bucket.params, bucket.param_shard))
        for work in pending:
            work.wait()

    def _global_norm(self) -> torch.Tensor:
        """L2 norm over all shards in fp32, a scalar on the device; padding is zero and adds nothing."""
        norms = [torch.linalg.vector_norm(bucket.grad_shard, dtype=torch.float32) for bucket in self.buckets]
        squares = torch.stack(norms).square().sum()
        if self.sharding.num_shards > 1:
            collectives.all_reduce_sum(squares)
        return squares.sqrt()

    def _clip_scale(self, norm: torch.Tensor) -> torch.Tensor | None:
        """What gradients are multiplied by: 1 / max(1, (norm + 1e-6) / clipping), as DeepSpeed clips."""
        if self.policy.clipping == 0:
            return None
        return ((norm + 1e-6) / self.policy.clipping).clamp(min=1.0).reciprocal()


def _new_state(bucket: Bucket) -> ShardState:
    own = bucket.param_shard
    master = own if own.dtype == torch.float32 else own.float()
    return ShardState(master, torch.zeros_like(master), torch.zeros_like(master))


def _step_of(group: dict[str, object], step: int) -> AdamWStep:
    beta1, beta2 = cast("tuple[float, float]", group["betas"])
    return AdamWStep(
        step=step,
        lr=float(cast(float, group["lr"])),
        beta1=beta1,
        beta2=beta2,
        eps=cast(float, group["eps"]),
        weight_decay=cast(float, group["weight_decay"]),
        decoupled=bool(group["adam_w_mode"]),
        bias_correction=bool(group["bias_correction"]),
    )
