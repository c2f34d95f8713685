"""What ends a launch before its ranks do, and the exit codes of `dslaunch` itself."""

from __future__ import annotations

EXIT_USAGE = 2
"""A command line, a file or a setting that cannot be used; nothing was started."""
EXIT_LAUNCH_FAILED = 110
"""A host could not be reached, or could not run its part; no rank is left."""
EXIT_NODE_LOST = 111
"""An agent, or the way to it, was lost while its ranks ran."""
EXIT_PREFLIGHT = 113
"""Hosts were looked over before the launch, and cannot be used as they are; nothing was started."""

EXIT_HUNG = 112
"""The job made no progress for --hang_timeout seconds, and was ended."""

EXIT_PREEMPTED = 114
"""An agent was told to end by someone else on its host: a batch system, a machine that is taken away."""


class LaunchError(Exception):
    """The launch failed before any rank ran, and not by bad input. `hint` is the next action."""

    exit_code = EXIT_LAUNCH_FAILED

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class PreflightError(LaunchError):
    """Too few hosts are well."""

    exit_code = EXIT_PREFLIGHT


class UsageError(Exception):
    """Bad input, found before anything was started. `hint` is the next action for the user."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
