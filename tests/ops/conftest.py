"""Kernels are built once a test run, in a folder of its own; every kind of processor code is a parameter."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dslaunch.engine.ops import backends
from dslaunch.engine.ops.cpu_library import CpuLibrary

sys.path.insert(0, str(Path(__file__).parent))

TARGETS = ("baseline", "avx2", "avx512", "avx512bf16", "cuda")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("DSLAUNCH_CACHE", str(folder))
        patch.delenv("DSLAUNCH_OPS", raising=False)
        backends.forget()
        yield folder
    backends.forget()


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(1 << 30)


@pytest.fixture(params=TARGETS)
def device(request: pytest.FixtureRequest, cache: Path) -> Iterator[torch.device]:
    """A device whose kernels are there; on CPUs, with this set of instructions."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        assert backends.of(torch.device("cuda", 0)) is not None
        yield torch.device("cuda", 0)
        return
    library = backends.of(torch.device("cpu"))
    assert isinstance(library, CpuLibrary)
    if not library.use(request.param) or request.param not in ("best", library.instruction_set):
        pytest.skip(f"this processor has no {request.param}")
    yield torch.device("cpu")
    library.use("best")
