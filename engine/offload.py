"""Which buckets the host steps, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence

from dslaunch.engine.bucket_steps import Offload
from dslaunch.engine.buckets import Bucket
from dslaunch.engine.config_values import OffloadOptimizerConfig
from dslaunch.engine.errors import EngineError
from dslaunch.engine.host_gradients import HostGradients
from dslaunch.engine.host_stepper import HostStepper
from dslaunch.engine.lanes import lane_of
from dslaunch.engine.optimizer_rules import is_elementwise
from dslaunch.engine.param_groups import GroupPlan
from dslaunch.engine.placement import Placement


def build_offload(plan: GroupPlan, placement: Placement, config: OffloadOptimizerConfig) -> Offload | None:
    """Give the host its buckets; None where it is to step none.

    Matrices that Muon makes orthogonal stay on the device. EngineError where that leaves the host nothing.
    """
    if not config.is_on or not placement.trained:
        return None
    candidates = [b for b in placement.trained if is_elementwise(plan.rule, plan.groups[b.spec.group])]
    if not candidates:
        raise EngineError(
            f"offload_optimizer: {plan.name} needs whole tensors, which the host would not step",
            "use AdamW, or remove offload_optimizer",
        )
    buckets = host_share(candidates, config.ratio)
    device = buckets[0].params.device
    return Offload(
        buckets,
        HostGradients(buckets, lane_of(device), config.pin_memory),
        HostStepper(buckets, lane_of(device), config.pin_memory),
    )


def host_share(buckets: Sequence[Bucket], ratio: float) -> list[Bucket]:
    """Those that backward completes first, up to `ratio` of all elements, rounded up to whole buckets.

    The gradients of the others come last, and would be waited for longest.
    """
    total = sum(bucket.spec.numel for bucket in buckets)
    chosen: list[Bucket] = []
    for bucket in buckets:
        if sum(other.spec.numel for other in chosen) >= ratio * total:
            break
        chosen.append(bucket)
    return chosen
