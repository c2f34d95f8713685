"""The batch triangle, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.engine.batch import BatchSizes, World, resolve_batch
from dslaunch.engine.config import BatchRequest
from dslaunch.engine.errors import ConfigError


def world(size: int, source: str = "WORLD_SIZE") -> World:
    return World(size, 0, 0, source)


@pytest.mark.parametrize(
    ("request_", "ranks", "sizes"),
    [
        ((24, 2, 3), 4, (24, 2, 3)),
        ((24, 2, None), 4, (24, 2, 3)),
        ((24, None, 3), 4, (24, 2, 3)),
        ((None, 2, 3), 4, (24, 2, 3)),
        ((24, None, None), 4, (24, 6, 1)),
        ((None, 2, None), 4, (8, 2, 1)),
    ],
)
def test_rows(
    request_: tuple[int | None, int | None, int | None], ranks: int, sizes: tuple[int, int, int]
) -> None:
    assert resolve_batch(BatchRequest(*request_), world(ranks)) == BatchSizes(*sizes)


@pytest.mark.parametrize("request_", [(None, None, None), (None, None, 4)])
def test_nothing_to_go_by(request_: tuple[int | None, int | None, int | None]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_batch(BatchRequest(*request_), world(1))
    assert (
        caught.value.what == "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"
    )


def test_mismatch_names_the_source_of_the_world_size() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_batch(BatchRequest(7, 2, 3), world(1, "a single process"))
    assert caught.value.what == (
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 7 != 2 * 3 * 1 (world_size 1 comes from a single process)"
    )
    assert caught.value.hint == (
        "if more ranks were meant, start the script with dslaunch; "
        "if not, give two of the three numbers, or a train_batch_size such as 6"
    )


def test_mismatch_in_a_launched_job() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_batch(BatchRequest(10, None, None), world(4, "the torch process group"))
    assert "10 != 2 * 1 * 4 (world_size 4 comes from the torch process group)" in caught.value.what
    assert caught.value.hint == "give two of the three numbers, or a train_batch_size such as 8"


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ((0, 1, 1), "Train batch size: 0 has to be greater than 0"),
        ((8, -2, None), "Micro batch size per gpu: -2 has to be greater than 0"),
        ((8, None, 0), "Gradient accumulation steps: 0 has to be greater than 0"),
        ((2, None, None), "Micro batch size per gpu: 0 has to be greater than 0"),
        ((4, 8, None), "Gradient accumulation steps: 0 has to be greater than 0"),
    ],
)
def test_positive(request_: tuple[int | None, int | None, int | None], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_batch(BatchRequest(*request_), world(4))
    assert caught.value.what == what


sizes_or_none = st.none() | st.integers(1, 64)


@given(sizes_or_none, sizes_or_none, sizes_or_none, st.integers(1, 16))
def test_what_comes_out_fits(
    train: int | None, micro: int | None, accumulation: int | None, ranks: int
) -> None:
    try:
        sizes = resolve_batch(BatchRequest(train, micro, accumulation), world(ranks))
    except ConfigError:
        return
    assert sizes.train == sizes.micro * sizes.accumulation * ranks
    for given_, found in ((train, sizes.train), (micro, sizes.micro), (accumulation, sizes.accumulation)):
        assert given_ in (None, found)
