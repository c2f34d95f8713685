"""What fuzzing has found once, and what it started from, keeps being held."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
CASES = [(name, path) for name in TARGETS for path in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_corpus_is_held(name: str, path: Path) -> None:
    async def hold(target: Callable[[bytes], None]) -> None:
        target(path.read_bytes())

    asyncio.run(hold(TARGETS[name]))


@pytest.mark.parametrize("name", TARGETS)
def test_there_is_a_corpus(name: str) -> None:
    assert len([found for found, _ in CASES if found == name]) > 20
