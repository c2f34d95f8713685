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
class Piece:
    """`numel` elements of a parameter: those from `start` on of the 1-D tensor `tensor` in file `file`."""

    file: int
    tensor: str
    start: int
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


def even_part(numel: int, num_parts: int, index: int) -> range:
    """Part `index` of `numel` elements cut into `num_parts`; the shards of a bucket that has so many."""
    return range(numel * index // num_parts, numel * (index + 1) // num_parts)


def pieces_of(spec: BucketSpec, tensor: str, num_files: int) -> dict[str, tuple[Piece, ...]]:
    """Where the parameters of a bucket lie when file `i` holds, as `tensor`, the even part `i` of it."""
    parts = [even_part(spec.numel, num_files, index) for index in range(num_files)]
    found: dict[str, tuple[Piece, ...]] = {}
    first = 0  # slots follow one another, and so do the parts they begin in
    for slot in spec.slots:
        end = slot.offset + slot.numel
        while first < num_files - 1 and parts[first].stop <= slot.offset:
            first += 1
        pieces: list[Piece] = []
        for index in range(first, num_files):
            low, high = max(slot.offset, parts[index].start), min(end, parts[index].stop)
            if parts[index].start >= end:
                break
            if low < high:
                pieces.append(Piece(index, tensor, low - parts[index].start, high - low))
        found[slot.name] = tuple(pieces)
    return found


def cut(pieces: Iterable[Piece], low: int, high: int) -> list[Piece]:
    """The pieces of a parameter's elements [low, high), of the pieces of all its elements."""
    found: list[Piece] = []
    at = 0  # the piece's first element
    for piece in pieces:
        start, stop = max(low, at), min(high, at + piece.numel)
        if start < stop:
            found.append(Piece(piece.file, piece.tensor, piece.start + start - at, stop - start))
        at += piece.numel
    return found


def _bucket(index: int, members: Sequence[ParamSpec], num_shards: int, alignment: int) -> BucketSpec:
    slots: list[Slot] = []
    offset = 0
    for param in members:
        slots.append(Slot(param.name, index, offset, param.numel))
        offset += round_up(param.numel, alignment)
    numel = max(round_up(offset, num_shards * alignment), num_shards * alignment)
    return BucketSpec(index, members[0].group, members[0].dtype, tuple(slots), numel, members[0].unit)
