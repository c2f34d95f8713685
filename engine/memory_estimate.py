"""What a rank's model states take, by ZeRO stage. Arithmetic only, no torch.

Legend: `P` parameters, `W` ranks. A parameter takes p bytes in the compute dtype, g as a gradient, and o in
the optimizer: 4 for each state (2 in bf16), and for the fp32 master 4, or 2 where bf16 parameters are its
other half, or nothing where parameters are fp32 themselves.

  stage 0: P (p + g + o)              stage 2: P p + P (g + o) / W
  stage 1: P (p + g) + P o / W        stage 3: P (p + g + o) / W, less P p / W where masters of 4 bytes are
                                               on the device, from which parameters are cast when gathered

With bf16 and AdamW that is 14, 4 + 10 / W, 2 + 12 / W and 14 / W bytes a parameter, where Rajbhandari et al.,
"ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, figure 1, have 16, 4 + 12 / W,
2 + 14 / W and 16 / W.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dslaunch.engine.config_values import DtypeName, ZeroConfig

_NUM_BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
NUM_STATES: Mapping[str, int] = {
    "adam": 2,
    "lamb": 2,
    "adagrad": 1,
    "lion": 1,
    "sgd": 1,
    "muon": 1,
    "torch": 2,
}
SPLITTING_RULES = ("adam", "lion", "adagrad", "sgd")  # see masters.py
_BUCKETS_IN_FLIGHT = 2
_LARGEST_BUCKET_NUMEL = 1 << 25  # the engine's own, which reduce_bucket_size only caps


@dataclass(frozen=True, slots=True)
class ModelStates:
    """What is to be kept: P parameters, their dtypes, and how many states the optimizer has of each."""

    num_params: int
    dtype: DtypeName
    grad_dtype: DtypeName
    num_optimizer_states: int
    splits_masters: bool = False
    bytes_of_state: int = 4


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one rank. `buffers`: gradients under way (from stage 2), parameters gathered ahead and hpZ's
    second shard (3).
    """

    stage: int
    params_bytes: int
    grads_bytes: int
    optimizer_bytes: int
    buffers_bytes: int
    host_bytes: int = 0  # what offload keeps in the host's memory for this rank

    @property
    def total_bytes(self) -> int:
        """All of it on the device; activations come on top."""
        return self.params_bytes + self.grads_bytes + self.optimizer_bytes + self.buffers_bytes


def estimate(states: ModelStates, num_ranks: int, zero: ZeroConfig) -> list[StageMemory]:
    """The memory of one of `num_ranks` at the stages 0 to 3; shares are rounded up."""
    params = states.num_params * _NUM_BYTES[states.dtype]
    grads = states.num_params * _NUM_BYTES[states.grad_dtype]
    master = 0 if states.dtype == "fp32" else 2 if states.splits_masters else 4
    optimizer = states.num_params * (master + states.bytes_of_state * states.num_optimizer_states)
    stages = [
        StageMemory(
            stage,
            params if stage < 3 else _sharded_params(states, num_ranks, zero),
            _share(grads, num_ranks if stage >= 2 else 1),
            _share(optimizer, num_ranks if stage >= 1 else 1),
            _buffers(states, num_ranks, zero, stage),
        )
        for stage in range(4)
    ]
    if not zero.offload_optimizer.is_on:
        return stages
    return [stages[0], *(_offloaded(stage, states, num_ranks, zero) for stage in stages[1:])]


def _offloaded(on_device: StageMemory, states: ModelStates, num_ranks: int, zero: ZeroConfig) -> StageMemory:
    """With the host's part there: fp32 master and states, the pinned gradient, from stage 3 parameters.

    Of the gradients, buckets under way stay on the device; under accumulation all of them do.
    """
    ratio = zero.offload_optimizer.ratio
    moved = math.ceil(_share(states.num_params, num_ranks) * ratio)
    host = moved * (4 + states.bytes_of_state * states.num_optimizer_states + _NUM_BYTES[states.grad_dtype])
    bucket = min(zero.reduce_bucket_size, _LARGEST_BUCKET_NUMEL, states.num_params)
    host += 2 * _share(bucket, num_ranks) * _NUM_BYTES[states.dtype]
    leaving = math.ceil(on_device.grads_bytes * ratio)
    under_way = min(leaving, 3 * bucket * _NUM_BYTES[states.grad_dtype])
    memory = replace(
        on_device,
        optimizer_bytes=on_device.optimizer_bytes - math.ceil(on_device.optimizer_bytes * ratio),
        grads_bytes=on_device.grads_bytes - leaving + under_way,
        host_bytes=host,
    )
    if on_device.stage < 3 or not zero.offload_param.is_on:
        return memory
    return replace(memory, params_bytes=0, host_bytes=host + on_device.params_bytes)


def _is_gathered(states: ModelStates, num_ranks: int, zero: ZeroConfig) -> bool:
    """Whether stage 3 gathers: on several ranks, and of a single one's masters if they are many."""
    large = states.dtype != "fp32" and states.num_params > zero.stage3.max_live_parameters
    return num_ranks > 1 or zero.offload_param.is_on or large


def _sharded_params(states: ModelStates, num_ranks: int, zero: ZeroConfig) -> int:
    """What stage 3 keeps beside masters."""
    offloads = zero.offload_optimizer.is_on or zero.offload_param.is_on
    casts = states.dtype != "fp32" and not states.splits_masters
    if casts and not offloads and _is_gathered(states, num_ranks, zero):
        return 0
    return _share(states.num_params * _NUM_BYTES[states.dtype], num_ranks)


def _buffers(states: ModelStates, num_ranks: int, zero: ZeroConfig, stage: int) -> int:
    if stage < 2 or (num_ranks == 1 and not (stage == 3 and _is_gathered(states, num_ranks, zero))):
        return 0
    bucket = min(zero.reduce_bucket_size, _LARGEST_BUCKET_NUMEL) * _BUCKETS_IN_FLIGHT
    grads = min(bucket, states.num_params) * _NUM_BYTES[states.grad_dtype] if num_ranks > 1 else 0
    if stage == 2:
        return grads
    ahead = min(zero.stage3.prefetch_bucket_size, zero.stage3.max_live_parameters, states.num_params)
    node = zero.zero_hpz_partition_size
    second = _share(states.num_params, node) if 1 < node < num_ranks else 0
    return grads + (ahead + second) * _NUM_BYTES[states.dtype]


def _share(num_bytes: int, num_ranks: int) -> int:
    return -(-num_bytes // num_ranks)
