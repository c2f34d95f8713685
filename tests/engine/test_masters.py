"""Split masters are whole ones: the arithmetic on every pattern, training and checkpoints bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_pool import RankPool

from dslaunch.engine.masters import Master
from dslaunch.engine.ops import remainder


def halves_of(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    param = torch.empty_like(master, dtype=torch.bfloat16)
    rest = torch.empty_like(master, dtype=torch.int16)
    remainder.split_(master, param, rest)
    return param, rest


def settled(master: torch.Tensor) -> torch.Tensor:
    master = master.clone()
    remainder.settle_ties_(master)
    return master


def test_every_pattern_around_every_exponent_comes_back() -> None:
    """All 2^17 patterns below an even bf16 number and its odd neighbour, zeros, denormals, infinities too."""
    low = torch.arange(1 << 17, dtype=torch.int32)
    for top in (0, 1, 0x1E, 0x3F, 0x40, 0x7D, 0x7F - 1, 0x3F80 >> 1):
        for sign in (0, -(1 << 31)):
            bits = (low + (top << 17)) | sign
            master = bits.view(torch.float32)
            master = master[~master.isnan()]
            param, rest = halves_of(master)
            assert torch.equal(param, master.bfloat16())
            assert torch.equal(
                remainder.join(param, rest).view(torch.int32), settled(master).view(torch.int32)
            )


def test_only_ties_above_an_even_number_are_settled_and_round_as_before(seed: int) -> None:
    bits = torch.randint(-(1 << 31), (1 << 31) - 1, (1 << 20,), generator=torch.Generator().manual_seed(seed))
    master = bits.to(torch.int32).view(torch.float32)
    master = torch.cat(
        [master[~master.isnan()], torch.tensor([float("inf"), float("-inf"), 3.4028e38, -0.0])]
    )
    moved = settled(master).view(torch.int32) - master.view(torch.int32)
    ties = (master.view(torch.int32) & 0x1FFFF) == 0x8000
    assert torch.equal(moved, -ties.int())
    assert torch.equal(settled(master).bfloat16(), master.bfloat16())
    param, rest = halves_of(settled(master))
    assert torch.equal(remainder.join(param, rest).view(torch.int32), settled(master).view(torch.int32))


def test_nan_stays_nan() -> None:
    bits = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F808000, 0x7FFF8000], dtype=torch.int64)
    master = torch.cat([bits, bits - (1 << 31)]).to(torch.int32).view(torch.float32)
    assert master.isnan().all()
    param, rest = halves_of(master)
    assert param.isnan().all()
    assert remainder.join(param, rest).isnan().all()


def test_pieces_are_the_whole(seed: int) -> None:
    values = torch.randn(10_000_019, generator=torch.Generator().manual_seed(seed))
    param, rest = halves_of(values)
    master = Master(param, rest)
    pieces = list(master.pieces(slice(5, len(values) - 3)))
    assert len(pieces) > 1
    assert torch.equal(torch.cat(pieces), settled(values)[5:-3])


@pytest.mark.parametrize(("world", "stage"), [(1, 0), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_split_masters_train_as_whole_ones(ranks: RankPool, world: int, stage: int, seed: int) -> None:
    ranks.run(world, "master_cases", "split_masters_train_as_whole_ones", stage, seed)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_checkpoints_go_from_one_to_the_other(ranks: RankPool, tmp_path: Path, stage: int, seed: int) -> None:
    ranks.run(2, "master_cases", "checkpoints_go_from_one_to_the_other", str(tmp_path), stage, seed)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_edits(ranks: RankPool, stage: int) -> None:
    ranks.run(2, "master_cases", "edits_keep_what_is_beyond_bf16", stage)
