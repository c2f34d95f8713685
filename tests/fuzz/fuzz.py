"""Fuzz a parser: `pip install atheris`, then `python tests/fuzz/fuzz.py wire|link CORPUS -max_total_time=9`.

Options are libFuzzer's. What is found goes into tests/fuzz/corpus, which the tests replay.
"""

import asyncio
import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["dslaunch.launcher"]):
    from targets import TARGETS


async def main() -> None:
    """Inside a loop, which connections want; libFuzzer ends the process."""
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    asyncio.run(main())
