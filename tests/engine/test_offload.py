"""ZeRO-Offload: the same bits as without, on 1 and 2 ranks.

On a CPU the lanes that carry gradients out and parameters back run as late as they may, so that a wait that
is missing trains with stale numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from equivalence_cases import Case
from rank_pool import RankPool

BUCKETS: dict[str, object] = {"reduce_bucket_size": 300, "stage3_param_persistence_threshold": 20}
OPTIMIZER: dict[str, object] = {"offload_optimizer": {"device": "cpu"}}
BOTH: dict[str, object] = {**OPTIMIZER, "offload_param": {"device": "cpu"}}
KINDS = ("tied", "frozen", "unused")

CASES = [
    *(
        Case(
            f"stage{stage}{'-params' if 'offload_param' in offload else ''}-{dtype}-acc{accumulation}"
            f"{'-clip' if clipping else ''}",
            stage,
            dtype == "bf16",
            dtype == "fp16",
            accumulation,
            clipping,
            KINDS,
            groups=True,
            zero={**BUCKETS, **offload},
        )
        for stage, offload in ((1, OPTIMIZER), (2, OPTIMIZER), (3, OPTIMIZER), (3, BOTH))
        for dtype in ("fp32", "bf16", "fp16")
        for accumulation, clipping in ((1, 0.5), (3, 0.0))
    ),
    *(
        Case(
            f"stage{stage}-eager-acc{accumulation}",
            stage,
            True,
            accumulation=accumulation,
            model=KINDS,
            zero={**BUCKETS, **BOTH},
            check_overflow=False,
        )
        for stage in (1, 2, 3)
        for accumulation in (1, 3)
    ),
    *(
        Case(
            f"stage{stage}-half",
            stage,
            True,
            clipping=0.5,
            model=KINDS,
            zero={**BUCKETS, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
        )
        for stage in (1, 2, 3)
    ),
    Case("no-overlap-1", 1, True, clipping=0.5, zero={**BUCKETS, **OPTIMIZER, "overlap_comm": False}),
    Case("no-overlap-3", 3, True, clipping=0.5, zero={**BUCKETS, **BOTH, "overlap_comm": False}),
    Case("fp32-accumulation", 2, True, accumulation=3, grad_accum="fp32", zero={**BUCKETS, **OPTIMIZER}),
    *(
        Case(
            f"stage{stage}-low-moments",
            stage,
            True,
            clipping=0.5,
            zero={**BUCKETS, **OPTIMIZER},
            moments="bf16",
        )
        for stage in (1, 3)
    ),
    Case("direct", 1, True, accumulation=3, direct=True, model=KINDS, zero={**BUCKETS, **OPTIMIZER}),
]
LATE_NAMES = (
    *("stage1-bf16-acc1-clip", "stage2-eager-acc3", "stage1-half", "stage3-bf16-acc1-clip", "stage3-half"),
    *("stage3-params-fp16-acc1-clip", "stage3-params-fp32-acc3", "stage3-eager-acc3"),
)
LATE = [case for case in CASES if case.name in LATE_NAMES]


@pytest.mark.parametrize("world", [1, 2])
def test_offload_changes_no_bit(ranks: RankPool, seed: int, world: int) -> None:
    for found in ranks.run(world, "offload_cases", "run", CASES, seed):
        assert {name: differs for name, differs in found.items() if differs} == {}, seed  # type: ignore[attr-defined]


@pytest.mark.parametrize("world", [1, 2])
def test_forwards_that_wait_block_by_block_change_no_bit(ranks: RankPool, seed: int, world: int) -> None:
    for found, waited in ranks.run(world, "offload_cases", "run_late", LATE, seed):  # type: ignore[misc]
        assert {name: differs for name, differs in found.items() if differs} == {}, seed  # type: ignore[has-type]
        assert waited  # type: ignore[has-type]


@pytest.mark.parametrize(("world", "stage"), [(1, 1), (1, 3), (2, 3)])
def test_whoever_reads_states_waits_for_the_host(ranks: RankPool, seed: int, world: int, stage: int) -> None:
    ranks.run(world, "offload_cases", "steps_under_way", stage, seed)


@pytest.mark.parametrize("world", [1, 2])
def test_checkpoints_cross(ranks: RankPool, tmp_path: Path, seed: int, world: int) -> None:
    ranks.run(world, "offload_cases", "checkpoints_cross", str(tmp_path), seed)


@pytest.mark.parametrize("world", [1, 2])
def test_safe_access_reaches_the_host(ranks: RankPool, seed: int, world: int) -> None:
    ranks.run(world, "offload_cases", "access", seed)


def test_what_comes_too_late_is_refused(ranks: RankPool, seed: int) -> None:
    backward, zero_grad, edit = ranks.run(1, "offload_cases", "too_late", seed)[0]  # type: ignore[misc]
    assert backward.startswith("backward was called again after")  # type: ignore[has-type]
    assert zero_grad == "zero_grad() after backward: the host has begun to step with these gradients"  # type: ignore[has-type]
    assert edit == "gradients cannot be set: the host has begun to step with them"  # type: ignore[has-type]


def test_an_error_of_the_host_ends_the_step(ranks: RankPool, seed: int) -> None:
    assert "'str'" in str(ranks.run(1, "offload_cases", "host_steps_fail", seed)[0])


def test_nothing_is_left_of_an_engine(ranks: RankPool, seed: int) -> None:
    assert ranks.run(1, "offload_cases", "engines_end", seed) == [[]]


def test_parameters_alone_are_not_offloaded_in_training(ranks: RankPool, seed: int) -> None:
    said = ranks.run(1, "offload_cases", "training_without_its_optimizer_on_the_host", seed)
    assert said == ["offload_param without offload_optimizer: parameters on the host are stepped there"]


def test_states_can_be_put_away_and_come_back(ranks: RankPool, seed: int) -> None:
    assert ranks.run(2, "offload_cases", "states_come_back", seed)[0] == [
        "backward() or step() while lp_params are offloaded; call engine.reload_states() first",
        "backward() or step() while optim_states are offloaded; call engine.reload_states() first",
        "forward while lp_params are offloaded; call engine.reload_states() first",
        "offload_states: there are no states 'params'; name some of optim_states, hp_params, lp_params, "
        "lp_grads, contiguous_grad_buffer",
        "save_checkpoint() while lp_params are offloaded; call engine.reload_states() first",
        "save_checkpoint() while optim_states are offloaded; call engine.reload_states() first",
    ]


@pytest.mark.parametrize("world", [1, 2])
def test_a_model_that_is_only_asked_lives_on_the_host(ranks: RankPool, seed: int, world: int) -> None:
    ranks.run(world, "offload_cases", "a_model_that_is_only_asked", seed)


def test_matrices_that_need_to_be_whole_stay_on_the_device(ranks: RankPool, seed: int) -> None:
    said = ranks.run(2, "offload_cases", "matrices_stay_on_the_device", seed)
    assert said == ["offload_optimizer: LAMB needs whole tensors, which the host would not step"] * 2
