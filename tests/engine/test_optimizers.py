"""Every optimizer that the config or the script can name, on real ranks, against torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool

CASES: list[tuple[str, dict[str, object]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.1}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5}),
]
WHOLE_TENSORS: list[tuple[str, dict[str, object]]] = [
    ("LAMB", {"lr": 0.1, "betas": [0.9, 0.99], "weight_decay": 0.1}),
    ("Muon", {"muon_lr": 0.05, "lr": 0.01, "weight_decay": 0.1}),
    ("Muon", {"muon_lr": 0.05, "adam_lr": 0.01, "weight_decay": 0.1, "ns_method": "standard"}),
]


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(("kind", "params"), CASES)
def test_trains_as_torch(ranks: RankPool, kind: str, params: dict[str, object], stage: int) -> None:
    ranks.run(2, "optimizer_cases", "trains_as_torch", kind, params, stage)


@pytest.mark.parametrize(("world", "stage"), [(1, 0), (2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize(("kind", "params"), WHOLE_TENSORS)
def test_trains_tensor_by_tensor(
    ranks: RankPool, world: int, kind: str, params: dict[str, object], stage: int
) -> None:
    ranks.run(world, "optimizer_cases", "trains_as_the_paper", kind, params, stage)


@pytest.mark.parametrize(("kind", "params"), CASES[1:3])
def test_the_scripts_own_trains_too(ranks: RankPool, kind: str, params: dict[str, object]) -> None:
    ranks.run(2, "optimizer_cases", "client_trains_as_torch", kind, params, 1)


@pytest.mark.parametrize(
    ("kind", "params"), [*CASES[1:], *WHOLE_TENSORS[:2], ("Lion", {"lr": 0.01, "betas": [0.9, 0.95]})]
)
def test_resumes_exactly(ranks: RankPool, tmp_path: Path, kind: str, params: dict[str, object]) -> None:
    ranks.run(2, "optimizer_cases", "resumes", kind, params, 1, str(tmp_path))
