"""Functions of DeepSpeed's launcher that scripts call: host pools as dicts, of slot counts or of slots.

What they accept is what `dslaunch` accepts, but that slots are sorted. Errors are ValueErrors.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dslaunch.hostfile import (
    Host,
    Selection,
    Topology,
    TopologyError,
    parse_hostfile,
    parse_hostfile_bytes,
    select,
)
from dslaunch.launcher.errors import LaunchError, UsageError

Slots = dict[str, list[int]]


def fetch_hostfile(hostfile_path: str) -> dict[str, int] | None:
    """The number of slots of each host in a file; None where there is no such file."""
    path = Path(hostfile_path)
    if not path.is_file():
        return None
    return _counts(parse_hostfile_bytes(path.read_bytes(), str(path)))


def parse_hostfile_lines(hostfile_lines: Iterable[str]) -> dict[str, int]:
    """The number of slots of each host in a hostfile's lines."""
    return _counts(parse_hostfile("\n".join(line.rstrip("\n") for line in hostfile_lines), "hostfile"))


def parse_resource_filter(
    host_info: Mapping[str, Sequence[int]], include_str: str = "", exclude_str: str = ""
) -> Slots:
    """The hosts and slots that `--include` or `--exclude` leave of `host_info`; `{}` where none is left."""
    if include_str and exclude_str:
        raise ValueError("include_str and exclude_str exclude each other: keep one")
    if not host_info or not (include_str or exclude_str):
        return {name: list(slots) for name, slots in host_info.items()}
    topology = Topology(tuple(Host(name, tuple(slots)) for name, slots in host_info.items()))
    if exclude_str:
        return _without(topology, exclude_str)
    return _slots(select(topology, Selection(include=include_str)))


def parse_inclusion_exclusion(resource_pool: Mapping[str, int], inclusion: str, exclusion: str) -> Slots:
    """The same from the number of slots of each host."""
    pool = {name: list(range(count)) for name, count in resource_pool.items()}
    return parse_resource_filter(pool, include_str=inclusion, exclude_str=exclusion)


def encode_world_info(world_info: Mapping[str, object]) -> str:
    """A pool as one word, base64 of JSON."""
    return base64.urlsafe_b64encode(json.dumps(world_info).encode()).decode()


def main(args: Sequence[str] | None = None) -> None:
    """`dslaunch` with these words, else with the process's own; ends the process unless all went well.

    With `args` what is wrong with them is raised as a ValueError, as DeepSpeed does.
    """
    from dslaunch.launcher import cli

    if args is None:
        code = cli.main()
    else:
        from dslaunch.launcher.launch import launch

        try:
            request = cli.parse(args)
            code = 0 if request is None else launch(request, time.monotonic())
        except (UsageError, LaunchError, TopologyError) as error:
            raise ValueError(f"{error}\nhint: {error.hint}") from error
    if code:
        sys.exit(code)


def _counts(topology: Topology) -> dict[str, int]:
    return {host.name: len(host.slots) for host in topology}


def _slots(topology: Topology) -> Slots:
    return {host.name: sorted(host.slots) for host in topology}


def _without(topology: Topology, exclude: str) -> Slots:
    """`select` takes it for a mistake where nothing is left; here that is an answer."""
    spare = "".join(host.name for host in topology) + "-"  # a name that none of them has
    kept = _slots(select(Topology((*topology, Host(spare, (0,)))), Selection(exclude=exclude)))
    del kept[spare]
    return kept
