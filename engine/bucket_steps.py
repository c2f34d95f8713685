"""Stepping this rank's shards bucket by bucket, and giving every rank the new parameters.

Legend: `S` elements of this rank's shard of a bucket.
The rule on [S], then the start of the bucket's all-gather while the next one is being stepped. With `Offload`
the states of most buckets are on the host, which steps them (see host_gradients and host_stepper).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, Sharding, ShardState
from dslaunch.engine.collectives import Pending
from dslaunch.engine.host_gradients import HostGradients
from dslaunch.engine.host_memory import host_empty
from dslaunch.engine.host_stepper import HostStepper
from dslaunch.engine.late_gather import LateGather
from dslaunch.engine.masters import Master
from dslaunch.engine.ops.remainder import REST_DTYPE
from dslaunch.engine.ops.shard import Shard
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
from dslaunch.engine.sharded import ShardedBucket
from dslaunch.engine.whole_tensors import LambRule, MuonRule, measured

Group = Mapping[str, object]


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


class BucketSteps:
    """Gives every bucket of `plan` its state and steps them; collective where buckets are sharded."""

    def __init__(
        self, plan: GroupPlan, buckets: Sequence[Bucket], sharding: Sharding, offload: Offload | None
    ) -> None:
        self.plan = plan
        self.buckets = buckets
        self.sharding = sharding
        self.offload = offload
        self.late_gather: LateGather | None = None  # None: steps end by waiting for the new parameters
        for bucket in buckets:
            bucket.state = _new_state(bucket, plan)

    def update(
        self, groups: Sequence[Group], number: int, scale: torch.Tensor | None, found_inf: torch.Tensor | None
    ) -> None:
        """Step `number` (from 1) of all buckets, with the groups' hyperparameters as they are now.

        Gradients are multiplied by `scale`; where `found_inf` is not 0, nothing is changed.
        """
        rules = [step_of(self.plan.rule, self.plan.name, group, number) for group in groups]
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
            pending += [(bucket, work) for work in self.start_gather(bucket)]
        if self.offload is not None:
            for bucket in self.offload.buckets:
                if id(bucket) in self.offload.late:
                    stepping = self.offload.stepper.hand_over(bucket)
                    if self.late_gather is not None:
                        self.late_gather.take(bucket, stepping)
                    continue
                self.offload.stepper.publish(bucket)
                pending += [(bucket, work) for work in self.start_gather(bucket)]
        for bucket, work in pending:
            if self.late_gather is None:
                work.wait()
            else:
                self.late_gather.take(bucket, work)

    def begin(self, bucket: Bucket, groups: Sequence[Group], number: int) -> None:
        """Let the host step one bucket ahead of `update`, with the hyperparameters as they are now."""
        assert self.offload is not None
        rule = step_of(self.plan.rule, self.plan.name, groups[bucket.spec.group], number)
        assert not isinstance(rule, WHOLE_TENSOR_RULES)
        self.offload.stepper.begin(bucket, rule, None)

    def gradient_norm(self) -> torch.Tensor:
        """L2 norm over all shards in fp32, a scalar on the device; padding is zero and adds nothing."""
        squares = torch.stack([self._bucket_norm(bucket) for bucket in self.buckets]).square().sum()
        if self.sharding.num_shards > 1:
            collectives.all_reduce_sum(squares)
        return squares.sqrt()

    def _bucket_norm(self, bucket: Bucket) -> torch.Tensor:
        if self.offload is not None and bucket.host is not None:
            return self.offload.gradients.norm(bucket)
        norm: torch.Tensor = torch.linalg.vector_norm(bucket.mean_grad, dtype=torch.float32)
        return norm

    def start_gather(self, bucket: Bucket) -> list[Pending]:
        """Start giving every rank the new parameters, unless they are only gathered when needed."""
        if self.sharding.num_shards == 1 or isinstance(bucket, ShardedBucket):
            return []
        return [collectives.all_gather(bucket.params, bucket.param_shard)]

    def finish_stepping(self) -> None:
        """Wait for what the host still steps."""
        for bucket in self.buckets:
            bucket.finish_stepping()

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

    def finish_gathers(self) -> None:
        """Wait for the parameters that the next forward would wait for."""
        if self.late_gather is not None:
            self.late_gather.finish()


def _shard_of(bucket: Bucket) -> Shard:
    assert bucket.state is not None
    bucket.state.claim()
    master, states = bucket.state.master, tuple(bucket.state.states.values())
    return Shard(master.kept, states, bucket.mean_grad, master.out, bucket.own.start, bucket.spec.index)


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
