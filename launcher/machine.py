"""The machine the command line was typed on: all that is looked up of it, as one value."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dslaunch.launcher.accelerators import ACCELERATORS, VisibleDevices, visible_devices
from dslaunch.launcher.devices import LocalDevices, count


@dataclass(frozen=True, slots=True)
class Visible:
    """The devices that this machine leaves to this process. `kind` is a key of ACCELERATORS."""

    kind: str
    devices: VisibleDevices


@dataclass(frozen=True, slots=True)
class Machine:
    """Where this process runs. `names` is what it calls itself; `count_devices(accelerator)` looks."""

    environ: Mapping[str, str]
    cwd: Path
    home: Path
    count_devices: Callable[[str], LocalDevices]
    num_cpus: int
    names: frozenset[str]

    @staticmethod
    def here() -> Machine:
        name = socket.gethostname()
        return Machine(
            environ=os.environ,
            cwd=_logical_cwd(),
            home=Path.home(),
            count_devices=lambda accelerator: count(accelerator=accelerator),
            num_cpus=os.cpu_count() or 1,
            names=frozenset({"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]}),
        )

    def has_tool(self, name: str) -> bool:
        """Whether a program is on the PATH."""
        return shutil.which(name, path=self.environ.get("PATH")) is not None

    def visible(self, accelerator: str) -> Visible:
        """The devices that the environment leaves visible. Raises UsageError for an unknown accelerator."""
        found = self.count_devices(accelerator)
        variable = ACCELERATORS[found.kind].visible_devices_variable
        value = None if variable is None else self.environ.get(variable)
        if variable is None or value is None or found.num_devices == 0:
            return Visible(found.kind, VisibleDevices(tuple(range(found.num_devices)), {}))
        left = visible_devices(variable, value)
        return Visible(found.kind if left.slots else "cpu", left)


def _logical_cwd() -> Path:
    """The current folder by the name the user reached it by: behind a link it may be another elsewhere."""
    named = os.environ.get("PWD", "")
    try:
        if named and os.path.isabs(named) and os.path.samefile(named, "."):
            return Path(named)
    except OSError:
        pass  # PWD is stale
    return Path.cwd()
