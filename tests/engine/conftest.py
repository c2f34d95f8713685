"""Fixtures of the engine's tests."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(
    str(Path(__file__).parent)
)  # importlib mode leaves it out; ranks and tests share modules of it
from rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    pool = RankPool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def seed() -> int:
    """Fresh data every run; DSLAUNCH_TEST_SEED repeats one."""
    return int(os.environ.get("DSLAUNCH_TEST_SEED") or secrets.randbelow(2**31))
