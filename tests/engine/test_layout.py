"""Shard arithmetic, without tensors: what must hold of every layout, and that resharding moves every
element home.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.engine.layout import ParamSpec, cut, even_part, pieces_of, plan_layout

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


@given(params(), shards, caps, shards, st.data())
def test_pieces_hold_every_element_in_order(
    specs: list[ParamSpec], num_shards: int, cap: int, num_files: int, data: st.DataObject
) -> None:
    """The files of the engine's shards, or of any other even parts, as buckets of (parameter, element)."""
    for bucket in plan_layout(specs, num_shards, cap).buckets:
        flat: list[tuple[str, int] | None] = [None] * bucket.numel
        for slot in bucket.slots:
            flat[slot.offset : slot.offset + slot.numel] = [(slot.name, i) for i in range(slot.numel)]
        parts = [even_part(bucket.numel, num_files, index) for index in range(num_files)]
        assert [i for part in parts for i in part] == list(range(bucket.numel))
        if num_files == num_shards:
            assert parts == [bucket.shard(num_shards, index) for index in range(num_shards)]
        pieces = pieces_of(bucket, "t", num_files)
        assert list(pieces) == [slot.name for slot in bucket.slots]
        for slot in bucket.slots:
            low = data.draw(st.integers(0, slot.numel))
            high = data.draw(st.integers(low, slot.numel))
            read = [
                element
                for piece in cut(pieces[slot.name], low, high)
                for element in flat[parts[piece.file].start + piece.start :][: piece.numel]
            ]
            assert read == [(slot.name, i) for i in range(low, high)]
            assert all(piece.numel for piece in pieces[slot.name])
