"""The CPU library under AddressSanitizer and UndefinedBehaviorSanitizer, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Without those that compile for half a minute and find what a compiler warns of.
FLAGS = (
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize=null,object-size,vptr",
    "-fno-sanitize-recover=all",
)


def test_cpu_kernels_are_clean(tmp_path: Path) -> None:
    libraries = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    if not all(os.path.isabs(library) for library in libraries):
        pytest.skip("the compiler has no sanitizers")
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "sanitizer_case.py"), *FLAGS],
        env={
            **os.environ,
            "LD_PRELOAD": " ".join(libraries),
            # What Python never frees is not ours to find. GCC 13 aligns the other option's stacks for vectors
            # of 32 bytes at most (its bug 110027): kernels of AVX-512 end with a fault that is not theirs.
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
            "OMP_NUM_THREADS": "2",
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == "clean"


def _runtime(name: str) -> str:
    compiler = os.environ.get("CXX", "g++").split()
    try:
        ended = subprocess.run(
            [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return ended.stdout.strip()
