"""Offload on a GPU, on one rank and on two that share it; skipped where there is none."""

from __future__ import annotations

import json

import pytest
import torch
from cuda_offload_cases import LR, NUM_STEPS, WAYS
from gpu_ranks import run_ranks


@pytest.mark.parametrize("world", [1, 2])
def test_copies_and_compute_are_in_order(world: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    names = [name for name in WAYS if world == 1 or "pageable" not in name]
    for found in json.loads(run_ranks(world, ";".join(names), script="cuda_offload_cases.py")):
        copies = found.pop("copies", None)
        assert {name: far["changed"] for name, far in found.items() if far["changed"]} == {}
        for name, far in found.items():
            assert far["loss"] < 0.02, name
            assert (far["master_mean"] or 0.0) < 0.02 * LR * NUM_STEPS, name
        if copies is not None:
            numbers = {
                kind: sum(num for name, num in copies["copies"].items() if kind in name)
                for kind in ("Device -> Pinned", "Pinned -> Device", "Pageable")
            }
            assert numbers["Device -> Pinned"] >= copies["buckets"], copies
            assert numbers["Pinned -> Device"] >= copies["buckets"], copies
            assert numbers["Pageable"] <= 4, copies  # scalars: the norm, the clip factor
            assert copies["held"] < 1.2, copies  # gradients and states are gone
