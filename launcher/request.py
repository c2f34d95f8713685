"""Everything the command line says, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dslaunch.launcher.hang_limit import DEFAULT, HangLimit


class DryRun(Enum):
    """What `--dry_run` prints."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    """The command line as a job file for `--job`."""


class Preflight(Enum):
    """How closely the hosts are looked at before a launch."""

    OFF = "off"
    FAST = "fast"
    """All but what takes more than a moment: nvidia-smi, the kernel's log, who holds devices."""
    FULL = "full"


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
    """slurm where the hosts come from a Slurm allocation, else ssh."""
    SSH = "ssh"
    OPENSSH = "openssh"
    PDSH = "pdsh"
    SLURM = "slurm"
    OPENMPI = "openmpi"
    MPICH = "mpich"
    IMPI = "impi"
    MVAPICH = "mvapich"
    LOCAL = "local"


class LocalRankScheme(Enum):
    """How local ranks are counted."""

    INDEX = "index"
    """From 0 on each host."""
    DEEPSPEED = "deepspeed"
    """`RANK % (slots of the host)`, which Megatron-DeepSpeed asserts."""


class Engine(Enum):
    """What `import deepspeed` finds in the ranks."""

    AUTO = "auto"
    """On each host its own DeepSpeed where one is installed, else the bundled engine."""
    BUNDLED = "bundled"
    INSTALLED = "installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One command line, or a job file, or both. Optional fields are None where the user said nothing.

    The names are those of the options, with the unit where they have one.

    Attributes:
        hostfile: path as typed, "-" for stdin; `hosts`: lines of a hostfile, from a job file.
        num_nodes, num_gpus: counts; as in DeepSpeed 0 and -1 mean all.
        master_addr: name or address of the host of rank 0; `master_port`: of the rendezvous on it.
        node_rank: this host's place, for `no_ssh`; `coordination_port`: a port, "auto" or "none".
        script, args: the user's program and all that follows it, byte for byte (surrogateescape).
        env: `NAME=VALUE`, or `NAME` for the launcher's own value.
        expand_remote: variables in whose values `$NAME` is the host's own.
        python: interpreter of ranks and agents; `venv_script`: sourced before it, on each host.
        accelerator: kind of device, "auto" to look.
        console: whose output is shown: all, rank0, first-of-node, node, or ranks such as 0,4-7.
        stdin_rank: the rank that reads what is typed.
        name: what the job is called, None for the script's name; `detach`: go on in the background.
        bind_cores_to_rank: each rank gets cores of its own; `bind_core_list`: out of these, as in 0,2-4.
        drop_bad: launch without the hosts in which the preflight finds errors.
        max_restarts: how often a job that ended badly is started again; `spares`: hosts at the end of the
            selection that wait to replace others; `min_nodes`: with how few it may go on; `max_nodes`: those
            above it are spares.
        grace_s: seconds between asking ranks to end and SIGKILL.
        start_timeout_s: seconds until every host must have answered.
        lease_s: seconds without a sign of life after which the other side counts as lost; when they are over,
            a host that was cut off is clean.
        hang_timeout: what is done about a job without progress, and after how long.
    """

    script: str
    args: tuple[str, ...] = ()
    hostfile: str | None = None
    hosts: tuple[str, ...] = ()
    include: str = ""
    exclude: str = ""
    num_nodes: int | None = None
    num_gpus: int | None = None
    accelerator: str = "auto"
    one_device_per_rank: bool = False
    local_rank_scheme: LocalRankScheme = LocalRankScheme.INDEX
    master_addr: str | None = None
    master_port: int | None = None
    launcher: Launcher = Launcher.AUTO
    launcher_args: str = ""
    ssh_config: str | None = None
    ssh_port: int | None = None
    no_ssh: bool = False
    coordination_port: str = "auto"
    job_key_file: str | None = None
    node_rank: int | None = None
    force_multi: bool = False
    module: bool = False
    no_python: bool = False
    no_local_rank: bool = False
    engine: Engine = Engine.AUTO
    python: str | None = None
    venv_script: str | None = None
    cwd: str | None = None
    env: tuple[str, ...] = ()
    env_file: tuple[str, ...] = ()
    expand_remote: tuple[str, ...] = ()
    bind_cores_to_rank: bool = False
    bind_core_list: str | None = None
    stdin_rank: int | None = None
    console: str = "all"
    fold: bool = False
    log_dir: str | None = None
    enable_each_rank_log: str | None = None
    run_dir: str | None = None
    name: str | None = None
    detach: bool = False
    save_pid: bool = False
    log_level: str = "info"
    quiet: bool = False
    preflight: Preflight = Preflight.OFF
    drop_bad: bool = False
    max_restarts: int = 0
    spares: int = 0
    min_nodes: int | None = None
    max_nodes: int | None = None
    grace_s: float = 30.0
    start_timeout_s: float = 120.0
    lease_s: float = 15.0
    hang_timeout: HangLimit = DEFAULT
    dry_run: DryRun | None = None

    @property
    def hang_limit(self) -> HangLimit | None:
        """None for nothing, also where somebody types to a rank: it waits for that."""
        return None if self.hang_timeout.is_off or self.stdin_rank is not None else self.hang_timeout

    @property
    def run_mode(self) -> RunMode:
        return RunMode.MODULE if self.module else RunMode.PROGRAM if self.no_python else RunMode.SCRIPT
