"""The ZeRO optimizer: an elementwise rule over the flat fp32 shards of this rank.

Legend: `P` elements of a bucket, `S` elements of this rank's shard of it, `W` data-parallel ranks.

step(), in three phases:
  1. finish averaging the gradients (what the hooks sent during backward, and the rest);
  2. the global L2 norm from all shards, the clip factor, and whether the step can be applied at all;
  3. bucket by bucket: the rule on [S], then the start of its all-gather while the next one is being stepped.

With `Offload` the states of most buckets are on the host, which steps them (see host_gradients and
host_stepper). Gradients have then left during backward. Where nothing has to be known of all gradients before
the first bucket may be stepped (no clipping, no look at whether they are finite), the host begins at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, Sharding, ShardState
from dslaunch.engine.collectives import Pending
from dslaunch.engine.config_optimizer import Rule
from dslaunch.engine.errors import EngineError
from dslaunch.engine.host_gradients import HostGradients
from dslaunch.engine.host_memory import host_empty
from dslaunch.engine.host_stepper import HostStepper
from dslaunch.engine.late_gather import LateGather
from dslaunch.engine.loss_scale import LossScaler
from dslaunch.engine.masters import Master
from dslaunch.engine.ops.remainder import REST_DTYPE
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.optimizer_names import DeepSpeedNames
from dslaunch.engine.optimizer_rules import (
    WHOLE_TENSOR_RULES,
    AnyRule,
    splits_masters,
    state_dtype,
    states_of,
    step_of,
    step_shards_,
)
from dslaunch.engine.param_groups import GroupPlan
from dslaunch.engine.parameter_offload import ParameterOffload
from dslaunch.engine.reducer import GradientReducer
from dslaunch.engine.sharded import ShardedBucket
from dslaunch.engine.verdict import LATE_DEVICES, Verdict, counts
from dslaunch.engine.whole_tensors import LambRule, MuonRule, measured

_OF_ONE_GROUP = ("params", "initial_lr", "name")


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """What `step` does about the gradient norm."""

    clipping: float  # largest global norm; 0: do not clip
    skip_nonfinite: bool  # leave out steps whose norm is inf or nan
    scaler: LossScaler | None = None  # fp16: what the gradients were multiplied by

    @property
    def is_eager(self) -> bool:
        """Whether a bucket may be stepped before the gradients of all are known."""
        return self.clipping == 0 and not self.skip_nonfinite


@dataclass(frozen=True, slots=True, eq=False)
class Offload:
    """What steps the buckets that have a place on the host."""

    buckets: Sequence[Bucket]
    gradients: HostGradients
    stepper: HostStepper
    late: set[int] = field(default_factory=set)  # ids of those that are waited for where they are read

    def begin(self, rules: Sequence[AnyRule], scale: torch.Tensor | None) -> None:
        """Let the host step all of `buckets` that it has not begun with; `rules` by group."""
        on_host = None if scale is None else scale.cpu()
        # The newest may come first: those that step() itself waits for.
        for bucket in sorted(self.buckets, key=lambda bucket: id(bucket) not in self.late):
            rule = rules[bucket.spec.group]
            assert not isinstance(rule, WHOLE_TENSOR_RULES)
            self.stepper.begin(bucket, rule, on_host)


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
        for bucket in buckets:
            bucket.state = _new_state(bucket, plan)
            bucket.owner = self
        self.parameter_offload: ParameterOffload  # of stage 3; initialize sets it
        self.late_gather: LateGather | None = None  # None: steps end by waiting for the new parameters
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
        self._finish_gathers()
        self.reducer.finish()
        norm = self._global_norm()
        scale = self._gradient_scale(norm)
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

    def finish_stepping(self) -> None:
        """Wait for what the host still steps."""
        for bucket in self.buckets:
            bucket.finish_stepping()

    def publish(self) -> None:
        """Write the masters to the parameters, on all ranks, one bucket at a time. Collective."""
        self._finish_gathers()
        for bucket, state in zip(self.buckets, self.shards, strict=True):
            state.master.publish()
            self.republish(bucket)

    def republish(self, bucket: Bucket) -> None:
        """Give every rank the whole parameters of one bucket, after shards were written. Collective."""
        self._finish_gathers()
        for work in self._start_gather(bucket):
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

    def _update(self, scale: torch.Tensor | None, found_inf: torch.Tensor | None = None) -> None:
        number = self._num_applied + 1
        rules = [step_of(self.plan.rule, self.plan.name, group, number) for group in self.param_groups]
        self._num_applied = number
        own = [bucket for bucket in self.buckets if bucket.host is None]
        pending: list[tuple[Bucket, Pending]] = []
        if self.offload is not None:
            self.offload.begin(rules, scale)
        shards = [_shard_of(bucket) for bucket in own]
        sums = measured(rules, own, shards, scale, self.sharding.num_shards > 1)
        for index, (bucket, shard) in enumerate(zip(own, shards, strict=True)):
            rule = rules[bucket.spec.group]
            if isinstance(rule, LambRule):
                rule.apply(bucket, shard, sums[index])
            elif isinstance(rule, MuonRule):
                rule.apply(bucket, shard, scale)
            else:
                step_shards_(rule, [shard], scale, found_inf)
            pending += [(bucket, work) for work in self._start_gather(bucket)]
        if self.offload is not None:
            for bucket in self.offload.buckets:
                if id(bucket) in self.offload.late:
                    stepping = self.offload.stepper.hand_over(bucket)
                    if self.late_gather is not None:
                        self.late_gather.take(bucket, stepping)
                    continue
                self.offload.stepper.publish(bucket)
                pending += [(bucket, work) for work in self._start_gather(bucket)]
        for bucket, work in pending:
            if self.late_gather is None:
                work.wait()
            else:
                self.late_gather.take(bucket, work)

    def wait_late(self, late_gather: LateGather | None) -> None:
        """Let the next forward wait for new parameters where it reads them, as far as somebody sees it read.

        Those are the parameters that `late_gather` watches, unless the host steps them and they are gathered
        from several ranks, and those of stage 3 that the host steps, which are gathered before they are read.
        """
        self.late_gather = late_gather
        if self.offload is not None:
            watches = late_gather is not None and self.sharding.num_shards == 1
            late = [b for b in self.offload.buckets if watches or isinstance(b, ShardedBucket)]
            self.offload.late.clear()
            self.offload.late.update(map(id, late))
            self.offload.stepper.newest_first = bool(late)

    def _finish_gathers(self) -> None:
        if self.late_gather is not None:
            self.late_gather.finish()

    def _begin(self, bucket: Bucket) -> None:
        """Step one bucket ahead of `step`, with the hyperparameters as they are now."""
        assert self.offload is not None
        group = self.param_groups[bucket.spec.group]
        rule = step_of(self.plan.rule, self.plan.name, group, self._num_applied + 1)
        assert not isinstance(rule, WHOLE_TENSOR_RULES)
        self.offload.stepper.begin(bucket, rule, None)

    def _start_gather(self, bucket: Bucket) -> list[Pending]:
        """Start giving every rank the new parameters, unless they are only gathered when needed."""
        if self.sharding.num_shards == 1 or isinstance(bucket, ShardedBucket):
            return []
        return [collectives.all_gather(bucket.params, bucket.param_shard)]

    def _global_norm(self) -> torch.Tensor:
        """L2 norm over all shards in fp32, a scalar on the device; padding is zero and adds nothing."""
        squares = torch.stack([self._bucket_norm(bucket) for bucket in self.buckets]).square().sum()
        if self.sharding.num_shards > 1:
            collectives.all_reduce_sum(squares)
        norm = squares.sqrt()
        return norm if self.policy.scaler is None else norm / self.policy.scaler.scale

    def _bucket_norm(self, bucket: Bucket) -> torch.Tensor:
        if self.offload is not None and bucket.host is not None:
            return self.offload.gradients.norm(bucket)
        norm: torch.Tensor = torch.linalg.vector_norm(bucket.mean_grad, dtype=torch.float32)
        return norm

    def _gradient_scale(self, norm: torch.Tensor) -> torch.Tensor | None:
        """What gradients are multiplied by: 1 / loss scale / max(1, (norm + 1e-6) / clipping)."""
        scaler, clipping = self.policy.scaler, self.policy.clipping
        if clipping == 0:
            return None if scaler is None else torch.full_like(norm, 1 / scaler.scale)
        scale = ((norm + 1e-6) / clipping).clamp(min=1.0).reciprocal()
        return scale if scaler is None else scale / scaler.scale


def _shard_of(bucket: Bucket) -> Shard:
    assert bucket.state is not None
    bucket.state.claim()
    master, states = bucket.state.master, tuple(bucket.state.states.values())
    return Shard(master.kept, states, bucket.mean_grad, master.out, bucket.own.start, bucket.spec.index)


def _knows_late(rule: Rule, buckets: Sequence[Bucket], offload: Offload | None) -> bool:
    """Whether the device can leave a step out by itself, and runs behind the host."""
    by_kernels = rule in ("adam", "adagrad", "lion", "sgd") and offload is None
    return by_kernels and bool(buckets) and buckets[0].params.device.type in LATE_DEVICES


def _new_state(bucket: Bucket, plan: GroupPlan) -> ShardState:
    """Fp32 parameters are their own masters where both are kept on the same side."""
    kept = own = bucket.param_shard
    group = plan.groups[bucket.spec.group]
    on_host, fp32 = bucket.host is not None, own.dtype == torch.float32
    if on_host and not (bucket.is_kept_on_host and fp32):
        kept = host_empty(own.numel(), torch.float32).copy_(own.cpu())
    elif not (on_host or bucket.is_kept_on_host) and splits_masters(plan.rule, group, bucket.spec.dtype):
        kept = torch.zeros_like(own, dtype=REST_DTYPE)
    elif not on_host and (bucket.is_kept_on_host or not fp32):
        kept = own.to(bucket.params.device, torch.float32)
    starts, dtype = states_of(plan.rule, plan.name, group), state_dtype(group)
    states = {name: _new(kept, dtype, on_host).fill_(start) for name, start in starts.items()}
    return ShardState(Master(own, kept), states, starts)


def _new(kept: torch.Tensor, dtype: torch.dtype, on_host: bool) -> torch.Tensor:
    """As many elements as `kept` has."""
    return host_empty(kept.numel(), dtype) if on_host else torch.empty_like(kept, dtype=dtype)
