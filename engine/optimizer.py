"""The ZeRO optimizer as scripts see it: torch's interface, and whether steps count.

step(), in three phases:
  1. finish averaging the gradients (what the hooks sent during backward, and the rest);
  2. the global L2 norm from all shards, the clip factor, and whether the step can be applied at all;
  3. the rule on this rank's shard of every bucket (bucket_steps).

With `Offload` gradients have left during backward. Where nothing has to be known of all gradients before the
first bucket may be stepped (no clipping, no look at whether they are finite), the host begins at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch

from dslaunch.engine.bucket_steps import BucketSteps, Offload
from dslaunch.engine.buckets import Bucket, Sharding, ShardState
from dslaunch.engine.config_optimizer import Rule
from dslaunch.engine.errors import EngineError
from dslaunch.engine.late_gather import LateGather
from dslaunch.engine.loss_scale import LossScaler
from dslaunch.engine.optimizer_names import DeepSpeedNames
from dslaunch.engine.param_groups import GroupPlan
from dslaunch.engine.parameter_offload import ParameterOffload
from dslaunch.engine.reducer import GradientReducer
from dslaunch.engine.step_policy import StepPolicy
from dslaunch.engine.verdict import LATE_DEVICES, Verdict, counts

_OF_ONE_GROUP = ("params", "initial_lr", "name")


class ShardedOptimizer(DeepSpeedNames, torch.optim.Optimizer):
    """The plan's rule on this rank's shard of every bucket; `param_groups` hold the model's own parameters.

    Edits of `param_groups[i]["lr"]` (and the other hyperparameters) take effect at the next step.
    """

    def __init__(
        self,
        plan: GroupPlan,
        buckets: Sequence[Bucket],
        sharding: Sharding,
        reducer: GradientReducer,
        policy: StepPolicy,
        offload: Offload | None = None,
    ) -> None:
        self.buckets = buckets
        self.offload = offload
        self.sharding = sharding
        self.reducer = reducer
        self.policy = policy
        self.steps = BucketSteps(plan, buckets, sharding, offload)
        for bucket in buckets:
            bucket.owner = self
        self.parameter_offload: ParameterOffload  # of stage 3; initialize sets it
        self.scaling_said = ""  # of the last step, by the loss scaler
        self._num_applied = 0
        self._overflow = False
        self._verdict: Verdict | None = None  # of the last step, not yet read
        self._is_late = _knows_late(plan.rule, buckets, offload)
        self.plan = plan  # how groups are stepped
        self._num_groups = len(plan.groups)
        self._norm: torch.Tensor | float | None = None
        if offload is not None and policy.is_eager:
            offload.gradients.on_leave = self._begin
        # Schedulers read from the defaults what the optimizer knows: OneCycleLR looks for betas or momentum.
        defaults = {name: value for name, value in plan.groups[0].items() if name not in _OF_ONE_GROUP}
        super().__init__(cast("list[dict[str, object]]", list(plan.groups)), defaults)

    @property
    def late_gather(self) -> LateGather | None:
        """What makes the next forward wait for new parameters; None: `step` does."""
        return self.steps.late_gather

    @property
    def shards(self) -> list[ShardState]:
        """The state of every bucket on this rank."""
        return [bucket.state for bucket in self.buckets if bucket.state is not None]

    @property
    def num_applied(self) -> int:
        """Steps that were applied, Adam's t; waits for the last step's verdict."""
        self._settle()
        return self._num_applied

    @num_applied.setter
    def num_applied(self, value: int) -> None:
        self._settle()
        self._num_applied = value

    @property
    def overflow(self) -> bool:
        """Whether the last step was left out; waits for its verdict."""
        self._settle()
        return self._overflow

    @property
    def is_decided(self) -> bool:
        """Whether the host knows if the last step was applied."""
        return self._verdict is None

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before backward; 1 unless in fp16."""
        return 1.0 if self.scaler is None else self.scaler.scale

    @property
    def scaler(self) -> LossScaler | None:
        """What decides the loss scale; waits for the last step's verdict."""
        if self.policy.scaler is not None:
            self._settle()
        return self.policy.scaler

    # What Hugging Face and scripts read.
    cur_scale = loss_scale

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
        self._settle()
        self.steps.finish_gathers()
        self.reducer.finish()
        norm = self.policy.unscaled(self.steps.gradient_norm())
        scale = self.policy.gradient_scale(norm)
        self._norm = norm
        if not self.policy.skip_nonfinite:
            self._update(scale)
        elif self._is_late:
            self._verdict = Verdict(norm)
            self._update(scale, self._verdict.found_inf)
        else:
            self._norm = norm.item()
            if counts(self._norm):
                self._update(scale)
        self.reducer.clear()
        if isinstance(self._norm, float):
            self._decide(self._norm)

    def _update(self, scale: torch.Tensor | None, found_inf: torch.Tensor | None = None) -> None:
        self._num_applied += 1
        self.steps.update(self.param_groups, self._num_applied, scale, found_inf)

    def _begin(self, bucket: Bucket) -> None:
        """Let the host step `bucket` ahead of `step`."""
        self.steps.begin(bucket, self.param_groups, self._num_applied + 1)

    def _settle(self) -> None:
        """Have the last step's verdict."""
        if self._verdict is not None:
            verdict, self._verdict = self._verdict, None
            self._norm = verdict.norm()
            if not counts(self._norm):
                self._num_applied -= 1
            self._decide(self._norm)

    def _decide(self, norm: float) -> None:
        self._overflow = not counts(norm)
        scaler = self.policy.scaler
        self.scaling_said = "" if scaler is None else scaler.update(self._overflow)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Forget all gradients of this step; `set_to_none` has no effect."""
        if self.offload is not None and self.offload.stepper.has_begun:
            raise EngineError(
                "zero_grad() after backward: the host has begun to step with these gradients",
                "call step(), or set gradient_clipping, which makes the host wait for step()",
            )
        self.reducer.clear()

    def set_lr(self, lr: float) -> None:
        """Give every parameter group this learning rate."""
        for group in self.param_groups:
            group["lr"] = lr

    def global_norm(self) -> float | None:
        """The L2 norm of the last step's mean gradient, unscaled and before clipping; None before a step."""
        self._settle()
        return self._norm.item() if isinstance(self._norm, torch.Tensor) else self._norm

    def publish(self) -> None:
        """Write the masters to the parameters, on all ranks, one bucket at a time. Collective."""
        self.steps.finish_gathers()
        for bucket, state in zip(self.buckets, self.shards, strict=True):
            state.master.publish()
            self.republish(bucket)

    def republish(self, bucket: Bucket) -> None:
        """Give every rank the whole parameters of one bucket, after shards were written. Collective."""
        self.steps.finish_gathers()
        for work in self.steps.start_gather(bucket):
            work.wait()

    def refresh_masters(self) -> None:
        """Take the masters anew from the parameters, after something else has written those."""
        for bucket in self.buckets:
            bucket.refresh_master()

    def scaler_state(self) -> dict[str, float] | None:
        """What the loss scaler carries; None unless in fp16."""
        self._settle()
        return None if self.policy.scaler is None else self.policy.scaler.state_dict()

    def state_dict(self) -> dict[str, object]:
        """This rank's shards only; see `engine.save_checkpoint` for what can be resumed anywhere."""
        from dslaunch.engine.local_state import local_state

        return local_state(self)

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Take back what `state_dict` gave on this rank. Collective."""
        from dslaunch.engine.local_state import load_local_state

        load_local_state(self, state_dict)


def _knows_late(rule: Rule, buckets: Sequence[Bucket], offload: Offload | None) -> bool:
    """Whether the device can leave a step out by itself, and runs behind the host."""
    by_kernels = rule in ("adam", "adagrad", "lion", "sgd") and offload is None
    return by_kernels and bool(buckets) and buckets[0].params.device.type in LATE_DEVICES
