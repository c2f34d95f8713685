"""Engines with moments in bf16 (tests/ops/test_low_states.py has the kernels), on 1 and 2 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_pool import RankPool

from dslaunch.engine.config_optimizer import optimizer_spec
from dslaunch.engine.config_values import OptimizerConfig
from dslaunch.engine.errors import ConfigError


def test_engines_learn_as_much(ranks: RankPool, seed: int) -> None:
    for found in ranks.run(2, "low_moment_cases", "learns_as_much", seed):
        for full, low in found:  # type: ignore[attr-defined]
            assert abs(low / full - 1) < 0.05, (seed, found)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 2), (2, 1)])
def test_checkpoints_are_loaded_by_other_ranks_and_moments(
    ranks: RankPool, tmp_path: Path, seed: int, saved_by: int, loaded_by: int
) -> None:
    saved = ranks.run(saved_by, "low_moment_cases", "checkpoints", str(tmp_path), seed, True)[0]
    loaded = ranks.run(loaded_by, "low_moment_cases", "checkpoints", str(tmp_path), seed, False)[0]
    assert saved == loaded


def test_an_optimizer_of_the_script_brings_its_own(ranks: RankPool, seed: int) -> None:
    ranks.run(1, "low_moment_cases", "a_client_brings_its_own", seed)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("AdamW", "fp16", "optimizer.params.moment_dtype expects fp32 or bf16 but got 'fp16'"),
        ("Lion", "bf16", "moment_dtype is refused: only AdamW keeps moments in another dtype, not Lion"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        optimizer_spec(OptimizerConfig(name, {"moment_dtype": value}))
    assert says in caught.value.what
