"""Runs the cases of a script on its ranks, and tells on rank 0 how each ended."""

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

_folder = Path()


def folder() -> Path:
    """Where the cases may write: the script's first argument."""
    return _folder


def close(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=tolerance, atol=tolerance)


def run_cases(cases: Sequence[Callable[[], None]], alone: Sequence[Callable[[], None]] = ()) -> int:
    """The exit code. argv: a folder, and the names of cases; all but `alone` where none is named."""
    global _folder
    given, *names = (word for word in sys.argv[1:] if not word.startswith("--local_rank"))
    _folder = Path(given)
    _folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for case in (*cases, *alone):
        if case.__name__ in names or (not names and case in cases):
            started = time.monotonic()
            try:
                case()
                words = "ok"
            except Exception:
                traceback.print_exc()
                words, failed = "failed", failed + 1
            gc.collect()
            if os.environ["RANK"] == "0":
                print(f"case {case.__name__} {words} {time.monotonic() - started:.1f} s", flush=True)
    return 1 if failed else 0
