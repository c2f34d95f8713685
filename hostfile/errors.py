"""The errors of this room: each says what is wrong, where, and what to do next."""

from __future__ import annotations

_MAX_QUOTED_CHARS = 120


def quoted(text: str) -> str:
    """`text` as errors show it: in quotes, on one line, control characters spelt out, long text shortened."""
    return repr(text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}...")


class TopologyError(ValueError):
    """A hostfile or a filter that cannot be used. `hint` is the next action for the user."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class HostfileError(TopologyError):
    """A bad line: reads as `<source>:<line number>: <what>: '<line>'`, long lines shortened."""

    def __init__(self, source: str, line_number: int, line: str, what: str, hint: str) -> None:
        super().__init__(f"{source}:{line_number}: {what}: {quoted(line)}", hint)
        self.source = source
        self.line_number = line_number
        self.line = line


class FilterError(TopologyError):
    """`--include`, `--exclude`, `--num_nodes` or `--num_gpus` that does not fit the hosts."""
