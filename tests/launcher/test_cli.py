"""The command line: its surface pinned, and everything behind the script left alone."""

import subprocess
from collections.abc import Callable

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.cli import COMMAND, parse
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.request import DryRun, Launcher, LaunchRequest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SURFACE = """
--accelerator --autotuning --bind_core_list --bind_cores_to_rank --console --coordination_port --cwd
--detach --drop_bad --dry_run --elastic_training --enable_each_rank_log --engine --env --env_file
--exclude+-e --expand_remote --fold --force_multi --grace --hang_timeout --hostfile+-H --include+-i --job
--job_key_file --launcher --launcher_args --lease --local_rank_scheme --log_dir --log_level --master_addr
--master_port --max_elastic_nodes --max_restarts --min_elastic_nodes --min_nodes --module --name
--no_local_rank --no_python --no_ssh --no_ssh_check --node_rank --num_accelerators+--num_gpus --num_nodes
--one_device_per_rank --preflight --python --quiet+-q --run_dir --save_pid --spares --ssh_config
--ssh_port --start_timeout --stdin --venv_script --version
"""


def test_the_surface_is_pinned() -> None:
    options = [option for option in COMMAND.params if isinstance(option, click.Option)]
    assert sorted("+".join(sorted(option.opts)) for option in options) == SURFACE.split()
    assert all(option.help for option in options)


@pytest.mark.parametrize(
    ("argv", "request_"),
    [
        (["x.py"], LaunchRequest(script="x.py")),
        (["--num-gpus", "2", "x.py"], LaunchRequest(script="x.py", num_gpus=2)),
        (["--num_accelerators=2", "x.py"], LaunchRequest(script="x.py", num_gpus=2)),
        (["-H", "h", "-i", "a:0", "x.py"], LaunchRequest(script="x.py", hostfile="h", include="a:0")),
        (["--dry_run", "x.py"], LaunchRequest(script="x.py", dry_run=DryRun.TABLE)),
        (["--dry-run", "x.py"], LaunchRequest(script="x.py", dry_run=DryRun.TABLE)),
        (["--dry-run=json", "x.py"], LaunchRequest(script="x.py", dry_run=DryRun.JSON)),
        (["--include", "--dry_run", "x.py"], LaunchRequest(script="x.py", include="--dry_run")),
        (["--module", "a.b"], LaunchRequest(script="a.b", module=True)),
        (["--no_python", "ls"], LaunchRequest(script="ls", no_python=True)),
        (["--launcher", "ssh", "x.py"], LaunchRequest(script="x.py", launcher=Launcher.SSH)),
        (["--grace", "3", "x.py"], LaunchRequest(script="x.py", grace_s=3.0)),
        (["--", "-x.py"], LaunchRequest(script="-x.py")),
        (
            ["--elastic_training", "--min_elastic_nodes", "2", "--max_elastic_nodes=4", "x.py"],
            LaunchRequest(script="x.py", max_restarts=100, min_nodes=2, max_nodes=4),
        ),
        (["x.py", "--dry_run", "--help"], LaunchRequest(script="x.py", args=("--dry_run", "--help"))),
    ],
)
def test_command_lines(argv: list[str], request_: LaunchRequest) -> None:
    assert parse(argv) == request_


NASTY = [
    "--",
    "--help",
    "--d",
    "-h",
    "",
    "a b",
    "a\nb",
    "'",
    '"',
    "$HOME",
    "--num_gpus",
    "4",
    "--x=y",
    "@f",
    "\udcff",
]


@given(st.lists(st.one_of(st.sampled_from(NASTY), st.text())))
def test_what_follows_the_script_is_the_scripts(args: list[str]) -> None:
    assert parse(["-q", "x.py", *args]) == LaunchRequest(script="x.py", args=tuple(args), quiet=True)


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ([], "no script"),
        (["--wrongly", "x.py"], "No such option '--wrongly'"),
        (
            ["--num_gpus", "x", "x.py"],
            "Invalid value for '--num_gpus' / '--num_accelerators': 'x' is not a valid integer range",
        ),
        (["--module", "--no_python", "x"], "--module and --no_python exclude each other"),
        (
            ["--master_port", "0", "x.py"],
            "Invalid value for '--master_port': 0 is not in the range 1<=x<=65535",
        ),
        (
            ["--launcher", "bogus", "x.py"],
            "Invalid value for '--launcher': 'bogus' is not one of auto, ssh, openssh, pdsh, slurm, "
            "openmpi, mpich, impi, mvapich, local",
        ),
        (["--hostfile"], "Option '--hostfile' requires an argument"),
    ],
)
def test_wrong_command_lines(argv: list[str], error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert str(caught.value).split(". (")[0] == error
    assert caught.value.hint


@pytest.mark.parametrize(("words", "completed"), [("--num_g", "--num_gpus"), ("--launcher slu", "slurm")])
def test_shells_complete_options(run: Run, words: str, completed: str) -> None:
    asked = {"_DSLAUNCH_COMPLETE": "bash_complete", "COMP_WORDS": f"dslaunch {words}"}
    result = run(env={**asked, "COMP_CWORD": str(len(words.split()))})
    assert f"plain,{completed}" in result.stdout.splitlines()
