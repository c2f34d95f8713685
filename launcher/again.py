"""The command that runs a job again, from its newest checkpoint where it has saved one. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dslaunch.launcher.environment import MASK, is_secret

_RESUME = ("--env", "DSLAUNCH_RESUME=1")


def command_again(words: Sequence[str], *, resumes: bool) -> str:
    """For a shell: `words` as they were given to `dslaunch`, values that look like secrets masked."""
    return shlex.join(["dslaunch", *(_RESUME if resumes else ()), *map(_masked, words)])


def _masked(word: str) -> str:
    setting = word.removeprefix("--env=")
    name, equals, _ = setting.partition("=")
    return f"{word.removesuffix(setting)}{name}={MASK}" if equals and is_secret(name) else word
