"""Everything the command line says, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DryRun(Enum):
    """What `--dry_run` prints."""

    TABLE = "table"
    JSON = "json"


class RunMode(Enum):
    """How the user's program becomes a process."""

    SCRIPT = "script"
    """`python -u script args`"""
    MODULE = "module"
    """`python -u -m module args`"""
    PROGRAM = "program"
    """`program args`: --no_python"""


class Launcher(Enum):
    """The backend asked for."""

    AUTO = "auto"
    SSH = "ssh"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One command line. Optional fields are None where the user said nothing.

    Attributes:
        hostfile: path as typed.
        num_nodes, num_gpus: counts, at least 1.
        master_addr: name or address of the host of rank 0.
        master_port: port of the rendezvous on it.
        node_rank: this host's place, for `no_ssh`.
        script, args: the user's program and all that follows it, byte for byte (surrogateescape).
        grace_s: seconds between asking ranks to end and SIGKILL.
        start_timeout_s: seconds until every host must have answered.
        lease_s: seconds without a sign of life after which the other side counts as lost.
    """

    script: str
    args: tuple[str, ...] = ()
    hostfile: str | None = None
    include: str = ""
    exclude: str = ""
    num_nodes: int | None = None
    num_gpus: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    node_rank: int | None = None
    launcher: Launcher = Launcher.AUTO
    ssh_port: int | None = None
    ssh_config: str | None = None
    no_ssh: bool = False
    force_multi: bool = False
    run_mode: RunMode = RunMode.SCRIPT
    no_local_rank: bool = False
    dry_run: DryRun | None = None
    quiet: bool = False
    grace_s: float = 30.0
    start_timeout_s: float = 120.0
    lease_s: float = 15.0
