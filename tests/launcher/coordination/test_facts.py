"""Facts are the same exactly where the originals are, however long, and differences name their field."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.coordination.facts import (
    MAX_VALUE_BYTES,
    Difference,
    JobFacts,
    differences,
    fact,
    shortened,
)

JOB = JobFacts(
    version="0.1.0",
    num_nodes=2,
    world_size=4,
    nodes="worker-0:0,1 worker-1:0,1",
    program="train.py",
    content="2c26b46b68ffc68f",
    args=("--name", "a b"),
    master_port=29500,
)
wild = st.text(st.characters(exclude_categories=()), max_size=800)


def test_every_field_is_told() -> None:
    assert [(fact.name, fact.value) for fact in JOB.facts()] == [
        ("dslaunch version", "0.1.0"),
        ("number of nodes", "2"),
        ("world size", "4"),
        ("nodes and slots", "worker-0:0,1 worker-1:0,1"),
        ("script", "train.py"),
        ("content of the script", "2c26b46b68ffc68f"),
        ("arguments", "--name 'a b'"),
        ("master port", "29500"),
    ]


def test_each_field_that_differs_is_named_with_both_values() -> None:
    other = replace(JOB, world_size=3, args=("--name", "c"))
    assert differences(JOB.facts(), JOB.facts()) == ()
    assert differences(JOB.facts(), other.facts()) == (
        Difference("world size", "4", "3"),
        Difference("arguments", "--name 'a b'", "--name c"),
    )


def test_a_field_of_one_side_only_is_a_difference() -> None:
    assert differences((fact("a", "1"),), (fact("b", "2"),)) == (
        Difference("a", "1", None),
        Difference("b", None, "2"),
    )


@given(wild, wild)
def test_values_are_bounded_and_as_different_as_the_originals(first: str, second: str) -> None:
    one, other = fact("x", first), fact("x", second)
    assert len(json.dumps(one.value)) <= MAX_VALUE_BYTES
    assert (one == other) == (first == second)


def test_a_long_value_tells_its_start_its_length_and_a_digest() -> None:
    value = fact("arguments", "x" * 1000).value
    assert value.startswith("xxxx")
    assert value.endswith("x... (1000 characters, sha256 " + value[-17:-1] + ")")
    assert fact("arguments", "x" * 999 + "y").value != value


@given(wild, st.integers(2, 900))
def test_shortened_is_the_longest_start_that_fits(text: str, num_bytes: int) -> None:
    short = shortened(text, num_bytes)
    assert text.startswith(short)
    assert len(json.dumps(short)) <= num_bytes
    assert short == text or len(json.dumps(text[: len(short) + 1])) > num_bytes
