"""The options of `dslaunch`: every one once, in the sections that `--help` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import click
from click.shell_completion import CompletionItem

from dslaunch.launcher.hang_limit import HangLimit, parse_hang_limit
from dslaunch.launcher.request import DryRun, Engine, Launcher, LocalRankScheme, Preflight


class EnumChoice(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A choice whose value is the member of an enumeration."""

    name = "choice"

    def __init__(
        self, kind: type[DryRun] | type[Preflight] | type[Engine] | type[Launcher] | type[LocalRankScheme]
    ) -> None:
        self._members = {member.value: member for member in kind}

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Enum:
        if isinstance(value, Enum):
            return value
        member = self._members.get(str(value).lower())
        if member is None:
            self.fail(f"{value!r} is not one of {', '.join(self._members)}", param, ctx)
        return member

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self._members)}]"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._members if name.startswith(incomplete)]


class CoordinationPort(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A port, `auto` or `none`."""

    name = "port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).lower()
        if text not in ("auto", "none") and not (text.isdecimal() and 1 <= int(text) <= 65535):
            self.fail(f"{value!r} is no port, nor none", param, ctx)
        return text


class HangTimeout(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`off`, `warn[:S]` or seconds; its value is a HangLimit."""

    name = "hang"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> HangLimit:
        if isinstance(value, HangLimit):
            return value
        try:
            return parse_hang_limit(str(value).lower())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Section:
    """A group of options with a heading."""

    def __init__(self, title: str, *options: click.Option) -> None:
        self.title = title
        self.options = options


def _option(*names: str, help: str, **settings: object) -> click.Option:
    return click.Option(list(names), help=help, **settings)  # type: ignore[arg-type]


def _flag(*names: str, help: str) -> click.Option:
    return _option(*names, help=help, is_flag=True)


_PORT = click.IntRange(1, 65535)
_COUNT = click.IntRange(min=-1)

SECTIONS = (
    Section(
        "Hosts and devices",
        _option("-H", "--hostfile", metavar="PATH", help="Hosts and slots; - for stdin. [/job/hostfile]"),
        _option("-i", "--include", default="", metavar="SPEC", help="Only these: worker-1@worker-2:0,2"),
        _option("-e", "--exclude", default="", metavar="SPEC", help="All but these: worker-1@worker-2:0,2"),
        _option("--num_nodes", type=_COUNT, metavar="N", help="Only the first N hosts."),
        _option(
            *("--num_gpus", "--num_accelerators"), type=_COUNT, metavar="N", help="Only N slots of each host."
        ),
        _option("--accelerator", default="auto", metavar="KIND", help="cuda, rocm, xpu, npu, cpu, ... [auto]"),
        _flag("--one_device_per_rank", help="Each rank sees its own device only, as local rank 0."),
        _option(
            "--local_rank_scheme",
            type=EnumChoice(LocalRankScheme),
            default=LocalRankScheme.INDEX.value,
            help="Count from 0 on each host, or RANK % slots. [index]",
        ),
    ),
    Section(
        "Where ranks meet",
        _option("--master_addr", metavar="ADDR", help="[an address of the first host that all others reach]"),
        _option("--master_port", type=_PORT, metavar="PORT", help="[29500, or a free one]"),
    ),
    Section(
        "Ways to the hosts",
        _option("--launcher", type=EnumChoice(Launcher), default=Launcher.AUTO.value, help="[auto]"),
        _option("--launcher_args", default="", metavar="ARGS", help="More arguments for ssh, pdsh, srun, mpirun."),
        _option("--ssh_config", metavar="PATH", help="Read this instead of ~/.ssh/config."),
        _option("--ssh_port", type=_PORT, metavar="PORT", help="SSH port of hosts that name none."),
        _flag("--no_ssh", help="Run only this node's part; start every node by hand."),
        _option("--node_rank", type=click.IntRange(min=0), metavar="N", help="This node's place, with --no_ssh."),
        _option("--coordination_port", type=CoordinationPort(), default="auto", metavar="PORT|none", help="Link of nodes started by hand. [master_port + 1]"),
        _option("--job_key_file", metavar="PATH", help="Key of that link; or DSLAUNCH_JOB_KEY."),
        _flag("--force_multi", help="Use the launcher also for this machine alone."),
        _flag("--no_ssh_check", help="Accepted: hosts are not tried before, but all at once at the start."),
        _option("--start_timeout", "start_timeout_s", type=click.FloatRange(min=0), default=120.0, metavar="S",
                help="Seconds for all hosts to answer. [120]"),
        _option("--preflight", type=EnumChoice(Preflight), default=Preflight.OFF.value, help="Look the hosts over first, as dslaunchctl check does. [off]"),
        _flag("--drop_bad", help="Launch without the hosts that the preflight finds bad."),
    ),
    Section(
        "Program",
        _flag("--module", help="SCRIPT is a module: python -m SCRIPT."),
        _flag("--no_python", help="SCRIPT is a program: run it without python."),
        _flag("--no_local_rank", help="Do not add --local_rank=N to the script's arguments."),
        _option("--engine", type=EnumChoice(Engine), default=Engine.AUTO.value,
                help="What import deepspeed finds: DeepSpeed if installed, else ours. [auto]"),
        _option("--python", metavar="PATH", help="Interpreter on the hosts. [the one that runs dslaunch]"),
        _option("--venv_script", metavar="PATH", help="Source this on each host first."),
        _option("--cwd", metavar="PATH", help="Folder to run in, on each host. [the current one]"),
        _flag("--bind_cores_to_rank", help="Give each rank cores of its own."),
        _option("--bind_core_list", metavar="LIST", help="Out of these cores: 0,2-4."),
        _option("--job", "job", metavar="PATH", help="Read options, hosts, env, script and args from a YAML file."),
    ),
    Section(
        "Environment",
        _option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set it for all ranks. May be repeated."),
        _option("--env_file", multiple=True, metavar="PATH", help="NAME=VALUE lines, besides .deepspeed_env."),
        _option("--expand_remote", multiple=True, metavar="NAME", help="$VARS in its value are the host's own."),
    ),
    Section(
        "Output",
        _option("--console", default="all", metavar="WHO", help="all, rank0, first-of-node, node, or 0,4-7. [all]"),
        _flag("--fold", help="Show lines that many ranks print alike once."),
        _option("--log_dir", metavar="PATH", help="Also write a file for each rank."),
        _option("--enable_each_rank_log", metavar="PATH", help="Write a file for each rank, and show nothing."),
        _option("--run_dir", metavar="PATH", help="Keep plan, events, verdict and logs of the run."),
        _option("--stdin", "stdin_rank", type=click.IntRange(min=0), metavar="RANK", help="Type to this rank."),
        _option("--name", metavar="NAME", help="What dslaunchctl calls the job. [the script's name]"),
        _flag("--detach", help="Go on in the background once all ranks run; see dslaunchctl attach."),
        _flag("--save_pid", help="Write /tmp/PID.deepspeed while the job runs."),
        _option("--log_level", type=click.Choice(["debug", "info", "warning", "error", "critical"]),
                default="info", help="How much dslaunch itself says. [info]"),
        _flag("-q", "--quiet", help="Say nothing but errors."),
        _option("--dry_run", type=EnumChoice(DryRun), help="Show who would run what, start nothing. [table]"),
    ),
    Section(
        "Ends",
        _option("--grace", "grace_s", type=click.FloatRange(min=0), default=30.0, metavar="S",
                help="Seconds from SIGTERM to SIGKILL. [30]"),
        _option("--max_restarts", type=click.IntRange(min=0), default=0, metavar="N", help="Start the whole job again after a bad end. [0]"),
        _option("--spares", type=click.IntRange(min=0), default=0, metavar="K", help="The last K hosts wait to replace lost ones. [0]"),
        _option("--min_nodes", type=click.IntRange(min=1), metavar="N", help="Go on with fewer hosts, N at least."),
        _option("--lease", "lease_s", type=click.FloatRange(min=5), default=15.0, metavar="S",
                help="Seconds of silence that mean lost. [15]"),
        _option("--hang_timeout", type=HangTimeout(), default="warn", metavar="off|warn[:S]|S", help="End a job, or warn, after S seconds without progress. [warn:900]"),
    ),
    Section(
        "Of DeepSpeed",
        _flag("--elastic_training", help="Restart on fewer hosts: as --max_restarts 100, with the next two."),
        _option("--min_elastic_nodes", type=click.IntRange(min=-1), metavar="N", help="As --min_nodes."),
        _option("--max_elastic_nodes", type=click.IntRange(min=-1), metavar="N", help="Train on N hosts at most; the others are spares."),
        _option("--autotuning", metavar="run|tune", help="Refused, with what to do instead."),
    ),
)  # fmt: skip


class SectionedCommand(click.Command):
    """A command whose help shows its options under their sections."""

    def __init__(self, *, sections: Sequence[Section], callback: Callable[..., object], help: str) -> None:
        self._sections = sections
        options: list[click.Parameter] = [option for section in sections for option in section.options]
        arguments = [click.Argument(["script"], required=False)]
        arguments.append(click.Argument(["args"], nargs=-1, type=click.UNPROCESSED))
        super().__init__(
            "dslaunch",
            params=[*options, *arguments],
            callback=callback,
            help=help,
            context_settings={
                "allow_interspersed_args": False,
                "token_normalize_func": underscores,
                "max_content_width": 110,
                "help_option_names": ["-h", "--help"],
            },
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in self._sections:
            records = [record for option in section.options if (record := option.get_help_record(ctx))]
            with formatter.section(section.title):
                formatter.write_dl(records)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "SCRIPT", "[ARGS]..."]


def underscores(name: str) -> str:
    """Every option may be spelled with - or _."""
    return name.replace("-", "_")
