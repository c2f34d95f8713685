"""ZeRO++'s gathers: rounding without ranks, and training on real ones."""

from __future__ import annotations

import pytest
import torch
from rank_pool import RankPool

from dslaunch.engine.zeropp import BLOCK_NUMEL, dequantize, quantize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_blocks_keep_their_values_within_half_a_step(dtype: torch.dtype, num_ranks: int) -> None:
    torch.manual_seed(4)
    whole = torch.randn(num_ranks, 5 * BLOCK_NUMEL) * torch.logspace(-4, 1, 5).repeat_interleave(BLOCK_NUMEL)
    whole[:, :BLOCK_NUMEL] = 0
    whole = whole.to(dtype)
    gathered = torch.cat([quantize(shard) for shard in whole])
    assert gathered.numel() == num_ranks * 5 * (BLOCK_NUMEL + 2)
    found = torch.empty(whole.numel(), dtype=dtype)
    dequantize(gathered, found, num_ranks)
    blocks = whole.view(-1, BLOCK_NUMEL).float()
    gaps = (found.view(-1, BLOCK_NUMEL).float() - blocks).abs().amax(dim=1)
    # half a step of 1/127, and what bf16 has taken from scale and value
    assert (gaps <= blocks.abs().amax(dim=1) * (0.5 / 127 + 2**-8)).all()
    assert not found[:BLOCK_NUMEL].any()


@pytest.mark.parametrize("broken", [torch.inf, torch.nan])
def test_what_is_not_finite_is_seen(broken: float) -> None:
    shard = torch.ones(2 * BLOCK_NUMEL)
    shard[3] = broken
    found = torch.empty_like(shard)
    dequantize(quantize(shard), found, 1)
    assert not found[:BLOCK_NUMEL].isfinite().any()
    torch.testing.assert_close(found[BLOCK_NUMEL:], shard[BLOCK_NUMEL:], rtol=0.01, atol=0)


def test_backward_gathers_inside_the_node(ranks: RankPool) -> None:
    ranks.run(4, "zeropp_cases", "backward_gathers_inside_the_node")


def test_a_second_shard_never_outlives_what_it_was_cut_from(ranks: RankPool) -> None:
    ranks.run(4, "zeropp_cases", "a_second_shard_never_outlives_what_it_was_cut_from")


@pytest.mark.parametrize(("world", "dtype"), [(2, "fp32"), (4, "bf16")])
def test_weights_travel_in_eight_bits(ranks: RankPool, world: int, dtype: str) -> None:
    ranks.run(world, "zeropp_cases", "weights_travel_in_eight_bits", dtype)


def test_a_node_that_does_not_divide_the_ranks(ranks: RankPool) -> None:
    ranks.run(4, "zeropp_cases", "a_node_that_does_not_divide_the_ranks")
