"""DeepSpeed's command names as small wrappers around ours, in a folder that the user names."""

from __future__ import annotations

import shlex
from pathlib import Path

from dslaunch.launcher.errors import UsageError

_HEAD = "#!/bin/sh\n# Written by dslaunchctl install-aliases; safe to remove.\n"
_WRAPPERS = {
    "deepspeed": 'exec {dslaunch} "$@"\n',
    "ds": 'exec {dslaunch} "$@"\n',
    "ds_report": 'exec {dslaunchctl} report "$@"\n',
    "ds_ssh": (
        "hosts=\n"
        'while [ "$1" = -f ] || [ "$1" = --hostfile ]; do hosts=$2; shift 2; done\n'
        'exec {dslaunchctl} exec ${{hosts:+--hostfile "$hosts"}} -- "$@"\n'
    ),
}


def install_aliases(folder: Path, programs: Path) -> list[Path]:
    """Write the wrappers into `folder`, all or none; `programs` has dslaunch and dslaunchctl. UsageError."""
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}", "name one that is on your PATH, such as ~/.local/bin")
    commands = {name: programs / name for name in ("dslaunch", "dslaunchctl")}
    for command in commands.values():
        if not command.is_file():
            raise UsageError(f"no {command}", "run the dslaunchctl of the environment that dslaunch is in")
    wrappers = [folder / name for name in _WRAPPERS]
    there = [path for path in wrappers if path.is_symlink() or path.exists()]
    if there:
        raise UsageError(f"{there[0]} exists already", "remove it, or name another folder")
    quoted = {name: shlex.quote(str(command)) for name, command in commands.items()}
    for path, body in zip(wrappers, _WRAPPERS.values(), strict=True):
        with path.open("x") as file:
            file.write(_HEAD + body.format(**quoted))
        path.chmod(0o755)
    return wrappers
