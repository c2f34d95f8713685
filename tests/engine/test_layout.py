"""Shard arithmetic, without tensors: what must hold of every layout, and that resharding moves every
element home.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.engine.layout import Layout, ParamSpec, plan_layout, plan_reshard

numels = st.integers(0, 300)


@st.composite
def params(draw: st.DrawFn) -> list[ParamSpec]:
    count = draw(st.integers(1, 25))
    return [
        ParamSpec(f"p{i}", draw(numels), draw(st.integers(0, 2)), draw(st.sampled_from(["fp32", "bf16"])))
        for i in range(count)
    ]


shards = st.integers(1, 9)
caps = st.integers(1, 500)
alignments = st.sampled_from([1, 4, 64])


@given(params(), shards, caps, alignments)
def test_every_parameter_has_one_slot_of_its_own(
    specs: list[ParamSpec], num_shards: int, cap: int, alignment: int
) -> None:
    layout = plan_layout(specs, num_shards, cap, alignment)
    slots = [slot for bucket in layout.buckets for slot in bucket.slots]
    assert sorted(slot.name for slot in slots) == sorted(spec.name for spec in specs)
    by_name = {spec.name: spec for spec in specs}
    for index, bucket in enumerate(layout.buckets):
        assert bucket.index == index
        end = 0
        for slot in bucket.slots:
            spec = by_name[slot.name]
            assert (slot.bucket, slot.numel) == (index, spec.numel)
            assert (bucket.group, bucket.dtype) == (spec.group, spec.dtype)
            assert slot.offset >= end
            assert slot.offset % alignment == 0
            end = slot.offset + slot.numel
        assert end <= bucket.numel


@given(params(), shards, caps, alignments)
def test_shards_are_equal_aligned_and_cover_the_bucket(
    specs: list[ParamSpec], num_shards: int, cap: int, alignment: int
) -> None:
    for bucket in plan_layout(specs, num_shards, cap, alignment).buckets:
        ranges = [bucket.shard(num_shards, index) for index in range(num_shards)]
        assert [i for own in ranges for i in own] == list(range(bucket.numel))
        assert len({len(own) for own in ranges}) == 1
        assert all(own.start % alignment == 0 and len(own) > 0 for own in ranges)


@given(params(), caps)
def test_buckets_are_capped_and_fill_in_reverse_order_of_use(specs: list[ParamSpec], cap: int) -> None:
    layout = plan_layout(specs, 1, cap, 1)
    order = {spec.name: index for index, spec in enumerate(specs)}
    for bucket in layout.buckets:
        assert len(bucket.slots) == 1 or sum(slot.numel for slot in bucket.slots) <= cap
        assert all(order[a.name] > order[b.name] for a, b in pairwise(bucket.slots))
    waits_for = [min(order[slot.name] for slot in bucket.slots) for bucket in layout.buckets]
    assert waits_for == sorted(waits_for, reverse=True)


def test_an_example() -> None:
    specs = [ParamSpec("a", 5, 0), ParamSpec("b", 3, 0), ParamSpec("c", 9, 0)]
    layout = plan_layout(specs, num_shards=2, bucket_numel=12, alignment=4)
    assert [[(s.name, s.offset, s.numel) for s in b.slots] for b in layout.buckets] == [
        [("c", 0, 9)],
        [("b", 0, 3), ("a", 4, 5)],
    ]
    assert [bucket.numel for bucket in layout.buckets] == [16, 16]


def _fill(layout: Layout, shard: int) -> list[list[tuple[str, int] | None]]:
    """A shard whose elements say which element of which parameter they are; None is padding."""
    found = []
    for bucket in layout.buckets:
        flat: list[tuple[str, int] | None] = [None] * bucket.numel
        for slot in bucket.slots:
            for i in range(slot.numel):
                flat[slot.offset + i] = (slot.name, i)
        own = bucket.shard(layout.num_shards, shard)
        found.append(flat[own.start : own.stop])
    return found


@given(params(), shards, caps, shards, caps, alignments)
def test_resharding_brings_every_element_home(
    specs: list[ParamSpec], old_shards: int, old_cap: int, new_shards: int, new_cap: int, alignment: int
) -> None:
    old = plan_layout(specs, old_shards, old_cap)
    new = plan_layout(specs, new_shards, new_cap, alignment)
    sources = [_fill(old, shard) for shard in range(old_shards)]
    for shard in range(new_shards):
        target: list[list[tuple[str, int] | None]] = [
            [None] * len(bucket.shard(new_shards, shard)) for bucket in new.buckets
        ]
        for copy in plan_reshard(old, new, shard):
            source = sources[copy.source_shard][copy.source_bucket]
            piece = source[copy.source_start : copy.source_start + copy.numel]
            assert len(piece) == copy.numel > 0
            target[copy.target_bucket][copy.target_start : copy.target_start + copy.numel] = piece
        assert target == _fill(new, shard)


@given(params(), shards, caps)
def test_an_unchanged_layout_copies_each_shard_from_itself(
    specs: list[ParamSpec], num_shards: int, cap: int
) -> None:
    layout = plan_layout(specs, num_shards, cap)
    for shard in range(num_shards):
        for copy in plan_reshard(layout, layout, shard):
            assert copy.source_shard == shard
            assert (copy.source_bucket, copy.source_start) == (copy.target_bucket, copy.target_start)
