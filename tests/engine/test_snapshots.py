"""Saves in the background: copied late, of the moment of the call all the same."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from rank_pool import RankPool

from dslaunch.engine.buckets import ShardState
from dslaunch.engine.checkpoint_snapshot import Copy, HostCopies, SnapshotMemory
from dslaunch.engine.masters import Master


@pytest.mark.parametrize(
    ("stage", "dtype", "offload"),
    [(0, "fp32", False), (1, "bf16", False), (3, "bf16", False), (2, "bf16", True)],
)
def test_whatever_changes_right_after_the_call_is_not_in_the_checkpoint(
    ranks: RankPool, tmp_path: Path, stage: int, dtype: str, offload: bool
) -> None:
    said = ranks.run(
        2, "snapshot_cases", "changes_come_after_the_snapshot", str(tmp_path), stage, dtype, offload
    )
    assert said == [[], []]


def state_of(numel: int) -> ShardState:
    master = Master(torch.zeros(numel, dtype=torch.bfloat16), torch.arange(float(numel)))
    return ShardState(master, {"exp_avg": torch.ones(numel)}, {"exp_avg": 0.0})


def test_what_no_state_is_named_for_is_copied_at_once() -> None:
    state, loose = state_of(5), torch.arange(12.0).view(3, 4).t()
    tensors = {"master": state.master.kept, "loose": loose}
    snapshot = SnapshotMemory().begin(tensors, {"master": state})
    loose.zero_()
    assert torch.equal(snapshot.tensors["loose"], torch.arange(12.0).view(3, 4).t())
    state.claim()
    state.master.kept.zero_()
    snapshot.finish()
    assert torch.equal(snapshot.tensors["master"], torch.arange(5.0))


def test_the_memory_is_kept_for_the_next_snapshot() -> None:
    memory, state = SnapshotMemory(), state_of(100)
    first = memory.begin({"master": state.master.kept}, {"master": state})
    first.finish()
    state.master.kept.add_(1)
    second = memory.begin({"master": state.master.kept}, {"master": state})
    second.finish()
    assert second.tensors["master"].data_ptr() == first.tensors["master"].data_ptr()
    assert torch.equal(second.tensors["master"], state.master.kept)
    other = memory.begin({"master": torch.zeros(7)}, {})
    assert other.tensors["master"].shape == (7,)


def test_all_who_wait_copy_together_and_return_when_all_is_copied() -> None:
    source = torch.randn(3 * (1 << 22) + 17)
    for _ in range(5):
        out = torch.zeros_like(source)
        copies = HostCopies([Copy(out, source)])
        seen: list[bool] = []

        def wait(copies: HostCopies = copies, out: torch.Tensor = out, seen: list[bool] = seen) -> None:
            copies.wait()
            seen.append(torch.equal(out, source))

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [True] * 3
