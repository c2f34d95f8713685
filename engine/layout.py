"""Shard arithmetic on ints: parameters to buckets, buckets to shards. No tensors.

Legend: `P` elements of a bucket, padding included; `S` = P / W elements of one shard; `W` shards. A bucket
is one flat buffer of one dtype and one parameter group. Every slot starts at a multiple of the alignment,
so that kernels may use wide loads, and P is a multiple of W * alignment, so that shards are equal and
aligned as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESIDENT = -1  # the unit of parameters that stay whole on every rank
ALIGNMENT_NUMEL = 64  # 128 bytes of bf16: a cache line, a TMA address, NCCL's widest store


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """What the layout must know of a parameter. Given in order of use."""

    name: str
    numel: int
    group: int  # index of its optimizer parameter group; -1: frozen
    dtype: str = "fp32"
    unit: int = RESIDENT  # the stage-3 unit it is gathered with


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies: elements [offset, offset + numel) of bucket `bucket`."""

    name: str
    bucket: int
    offset: int
    numel: int


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """One flat buffer: its slots in order of readiness, and P = `numel` with padding."""

    index: int
    group: int
    dtype: str
    slots: tuple[Slot, ...]
    numel: int
    unit: int = RESIDENT

    @property
    def has_padding(self) -> bool:
        """Whether some elements belong to no parameter."""
        return self.numel != sum(slot.numel for slot in self.slots)

    def shard(self, num_shards: int, index: int) -> range:
        """The elements of shard `index` of `num_shards`."""
        size = self.numel // num_shards
        return range(index * size, (index + 1) * size)


@dataclass(frozen=True, slots=True)
class Layout:
    """All buckets, in the order in which backward completes them."""

    buckets: tuple[BucketSpec, ...]
    num_shards: int

    def slots(self) -> dict[str, Slot]:
        """Every parameter's slot by name."""
        return {slot.name: slot for bucket in self.buckets for slot in bucket.slots}


@dataclass(frozen=True, slots=True)
class SliceCopy:
    """Copy `numel` elements of an old layout's shard to a new one's; starts count within the shards."""

    source_shard: int
    source_bucket: int
    source_start: int
    target_bucket: int
    target_start: int
    numel: int


def plan_layout(
    params: Sequence[ParamSpec], num_shards: int, bucket_numel: int, alignment: int = ALIGNMENT_NUMEL
) -> Layout:
    """Fill buckets in reverse order of use, as backward makes gradients ready.

    A bucket closes before its slots would exceed `bucket_numel`; a parameter larger than that gets a bucket
    of its own. A unit of stage 3 has one bucket per dtype and group, however large. Buckets are ordered by
    their last parameter, the one they wait for.
    """
    open_buckets: dict[tuple[str, int, int], list[int]] = {}
    closed: list[list[int]] = []
    for index in reversed(range(len(params))):
        key = (params[index].dtype, params[index].group, params[index].unit)
        members = open_buckets.setdefault(key, [])
        filled = sum_aligned((params[i].numel for i in members), alignment)
        if members and params[index].unit == RESIDENT and filled + params[index].numel > bucket_numel:
            closed.append(members)
            members = open_buckets[key] = []
        members.append(index)
    closed.extend(open_buckets.values())
    closed.sort(key=lambda members: -members[-1])
    return Layout(
        tuple(
            _bucket(index, [params[i] for i in members], num_shards, alignment)
            for index, members in enumerate(closed)
        ),
        num_shards,
    )


def sum_aligned(numels: Iterable[int], alignment: int) -> int:
    """The elements taken by slots of `numels` when each starts at a multiple of `alignment`."""
    return sum(round_up(numel, alignment) for numel in numels)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def plan_reshard(old: Layout, new: Layout, shard: int) -> list[SliceCopy]:
    """The copies that fill shard `shard` of `new` from the shards of `old`, wherever both hold the parameter.

    Both must give a parameter the same number of elements. Padding is copied by nobody: it is zero.
    """
    old_slots = old.slots()
    copies: list[SliceCopy] = []
    for bucket in new.buckets:
        own = bucket.shard(new.num_shards, shard)
        for slot in bucket.slots:
            source = old_slots.get(slot.name)
            if source is None:
                continue
            low, high = max(slot.offset, own.start), min(slot.offset + slot.numel, own.stop)
            size = old.buckets[source.bucket].numel // old.num_shards
            while low < high:
                at = source.offset + low - slot.offset
                numel = min(high - low, size - at % size)
                copies.append(
                    SliceCopy(at // size, source.bucket, at % size, bucket.index, low - own.start, numel)
                )
                low += numel
    return copies


def _bucket(index: int, members: Sequence[ParamSpec], num_shards: int, alignment: int) -> BucketSpec:
    slots: list[Slot] = []
    offset = 0
    for param in members:
        slots.append(Slot(param.name, index, offset, param.numel))
        offset += round_up(param.numel, alignment)
    numel = max(round_up(offset, num_shards * alignment), num_shards * alignment)
    return BucketSpec(index, members[0].group, members[0].dtype, tuple(slots), numel, members[0].unit)
