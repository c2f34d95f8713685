"""What faulthandler and py-spy write of a process's threads, read back. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEADER = re.compile(r"main thread (0x[0-9a-f]+)$")
_THREAD = re.compile(r"(?:Current thread|Thread) (?P<ident>0x[0-9a-f]+)")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?)(?: in (?P<function>.*))?$')
_PY_SPY_THREAD = re.compile(r'Thread (?P<ident>\S+) \(.*\): "(?P<name>.*)"$')
_PY_SPY_FRAME = re.compile(r"    (?P<function>.*?) \((?P<file>.*):(?P<line>\d+)\)$")
_LIBRARY = re.compile(r"(^<|[/.](site|dist)-packages/|/lib(64)?/python3|/python3\.\d+/|/dslaunch/engine/)")
_ADAPTERS = frozenset(
    {
        *("wrapper", "wrapped", "inner", "decorate_context", "_wrapped_call_impl", "_call_impl", "__call__"),
        *("_fn", "_func_with_args", "decorator", "__enter__", "__exit__"),
    }
)
"""Frames that only pass a call on, and say nothing of what it is."""
_COMMUNICATION = re.compile(r"/torch/distributed/(?!elastic|run|launcher|checkpoint)")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: `line` is 0 where it is not known."""

    function: str
    file: str
    line: int


def main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the process's main thread, innermost first; none where the text tells none."""
    main_ident = ""
    ident = ""
    threads: dict[str, list[Frame]] = {}
    for line in text.splitlines():
        if found := _HEADER.match(line):
            main_ident = found[1]
        elif found := _PY_SPY_THREAD.match(line):
            ident = found["ident"]
            main_ident = ident if found["name"] == "MainThread" else main_ident
        elif found := _THREAD.match(line):
            ident = found["ident"]
        elif found := _FRAME.match(line) or _PY_SPY_FRAME.match(line):
            threads.setdefault(ident, []).append(_frame(found))
    last = next(reversed(threads.values()), [])
    return tuple(_by_number(threads).get(_number(main_ident), last))


def _by_number(threads: dict[str, list[Frame]]) -> dict[int, list[Frame]]:
    """faulthandler pads a thread's number with zeros."""
    return {_number(ident): frames for ident, frames in threads.items()}


def _number(ident: str) -> int:
    try:
        return int(ident, 0)
    except ValueError:
        return -1


def _frame(found: re.Match[str]) -> Frame:
    line = found["line"]
    return Frame(found["function"] or "?", found["file"], int(line) if line.isdecimal() else 0)


def place(frames: Sequence[Frame]) -> str:
    """`all_reduce train.py:212`: the user's own line that is running, and the library's call it waits in.

    Without a library's call it is the user's function. "" for no frames.
    """
    own = next((i for i, frame in enumerate(frames) if not _LIBRARY.search(frame.file)), None)
    if own is None:
        return _shown(frames[0], frames[0].function) if frames else ""
    called = next((frame for frame in reversed(frames[:own]) if frame.function not in _ADAPTERS), None)
    function = (called or frames[own]).function
    return _shown(frames[own], "import" if function == "_find_and_load" else function)


def communicates(frames: Sequence[Frame]) -> bool:
    """Whether the thread is within a call of torch.distributed."""
    return any(_COMMUNICATION.search(frame.file) for frame in frames)


def _shown(frame: Frame, function: str) -> str:
    name = frame.file.rpartition("/")[2]
    return f"{name}:{frame.line}" if function == "<module>" else f"{function} {name}:{frame.line}"
