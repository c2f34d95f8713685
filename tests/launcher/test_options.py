"""Options by what ranks see of them; and job files, which mean the same as a command line."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.cli import COMMAND, parse
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.job_file import write_job
from dslaunch.launcher.request import Engine, Launcher, LaunchRequest, LocalRankScheme

PAYLOAD = str(Path(__file__).with_name("payload.py"))
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def seen(result: "subprocess.CompletedProcess[str]") -> list[dict[str, str]]:
    """The variables that each rank echoed, in rank order."""
    assert result.returncode == 0, result.stderr
    lines = [
        line.rpartition("] ")[2] if line.startswith("[") else line for line in result.stdout.splitlines()
    ]
    return [line["env"] for line in sorted(map(json.loads, lines), key=lambda line: int(line["rank"]))]


def test_env_and_env_file_in_their_order(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("A=1\nB=1\nC=1\n")
    (tmp_path / "more").write_text("B=2\nC=2\n")
    flags = ["--env_file=more", "--env", "C=3", "--env=D"]
    assert seen(run(*flags, PAYLOAD, "echo", env={"D": "own", "ECHO": "A B C D"})) == [
        {"A": "1", "B": "2", "C": "3", "D": "own"}
    ]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--env=1A=2"], "error: --env '1A=2' is not NAME or NAME=VALUE"),
        (["--env=NOT_THERE"], "error: --env NOT_THERE: there is no NOT_THERE here"),
        (["--env_file=nope"], "error: cannot read --env_file nope: No such file or directory"),
        (["--expand_remote=X"], "error: --expand_remote X: X is not forwarded"),
        (["--stdin=1"], "error: --stdin 1 of 1 ranks"),
        (["--bind_core_list=0"], "error: --bind_core_list without --bind_cores_to_rank"),
        (['--launcher_args="x'], "error: --launcher_args '\"x': No closing quotation"),
        (["--autotuning=run"], "error: --autotuning is not supported"),
        (["--min_elastic_nodes=2"], "error: --min_elastic_nodes or --max_elastic_nodes alone"),
        (["--spares=1"], "error: --spares without --max_restarts"),
        (["--max_restarts=1", "--spares=1"], "error: --spares 1 of 1 hosts"),
        (["--max_restarts=1", "--min_nodes=2"], "error: --min_nodes 2 of 1 hosts"),
        (["--accelerator=abacus"], "error: unknown accelerator 'abacus'"),
        (
            ["--launcher=pdsh", "--force_multi", "--env=HF_TOKEN=x"],
            "error: everyone would see HF_TOKEN in ps",
        ),
    ],
)
def test_what_does_not_fit_is_said(run: Run, flags: list[str], error: str) -> None:
    result = run(*flags, PAYLOAD, "echo")
    assert result.returncode == 2
    assert result.stderr.startswith(error)


def test_variables_of_the_host_are_expanded_where_asked(run: Run) -> None:
    flags = ["--env=A=/x:$HOME", "--env=B=/x:$HOME", "--expand_remote=A"]
    (env,) = seen(run(*flags, PAYLOAD, "echo", env={"ECHO": "A B HOME"}))
    assert (env["A"], env["B"]) == (f"/x:{env['HOME']}", "/x:$HOME")


def test_one_device_per_rank_is_device_0_of_each(run: Run) -> None:
    flags = ["--accelerator=cpu", "--num_gpus=2", "--one_device_per_rank"]
    assert [env["LOCAL_RANK"] for env in seen(run(*flags, PAYLOAD, "echo", env={"ECHO": "LOCAL_RANK"}))] == [
        "0",
        "0",
    ]


def test_deepspeeds_local_ranks_on_request(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=3\nb slots=2\n")
    for scheme, expected in (("index", [0, 1, 2, 0, 1]), ("deepspeed", [0, 1, 2, 1, 0])):
        result = run("--hostfile=hosts", f"--local_rank_scheme={scheme}", "--dry_run=json", "x.py")
        record = json.loads(result.stdout)
        assert [rank["local_rank"] for node in record["nodes"] for rank in node["ranks"]] == expected


def test_every_accelerator_has_its_variable(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\n")
    for accelerator, name in (("auto", "CUDA_VISIBLE_DEVICES"), ("npu", "ASCEND_RT_VISIBLE_DEVICES")):
        result = run("--hostfile=hosts", f"--accelerator={accelerator}", "--dry_run=json", "x.py")
        assert json.loads(result.stdout)["nodes"][0]["ranks"][0]["env"][name] == "0,1"


def test_another_folder_and_another_python(run: Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/x.py").write_text("import os, sys; print(os.getcwd(), sys.executable)")
    link = tmp_path / "python"
    link.symlink_to(os.path.realpath("/proc/self/exe"))
    result = run(f"--cwd={tmp_path}/there", f"--python={link}", "x.py")
    assert result.stdout == f"{tmp_path}/there {link}\n"


def test_a_venv_script_is_sourced_for_ranks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "venv.sh").write_text("export FROM_VENV='a b'\n")
    (env,) = seen(run("--venv_script=venv.sh", PAYLOAD, "echo", env={"ECHO": "FROM_VENV"}))
    assert env["FROM_VENV"] == "a b"


def test_ranks_are_bound_to_cores_of_their_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text(
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    )
    core = min(os.sched_getaffinity(0))
    result = run("--bind_cores_to_rank", f"--bind_core_list={core}", "where.py")
    assert result.stdout == f"[{core}] 1\n"
    result = run("--bind_cores_to_rank", f"--bind_core_list={core}", "--num_gpus=2", "where.py")
    assert result.returncode == 110
    assert "ranks cannot be bound to cores" in result.stderr


def test_a_hostfile_from_stdin(tmp_path: Path, environ: dict[str, str]) -> None:
    command = [sys.executable, "-c", "import sys; from dslaunch.launcher.cli import main; sys.exit(main())"]
    result = subprocess.run(
        [*command, "-H", "-", "--dry_run=json", "x.py"],
        input="worker-[0-1] slots=2\n",
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [node["host"] for node in json.loads(result.stdout)["nodes"]] == ["worker-0", "worker-1"]


JOB = """
hosts:
- worker-[0-1] slots=2
num-gpus: 1
env:
  GREETING: "hello  $x"
  YES: yes
fold: true
launcher: pdsh
grace: 2.5
script: train.py
args: [--lr, 1e-4, --flag, 1.10, "a b"]
"""


def test_a_job_file_is_a_command_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    expected = LaunchRequest(
        hosts=("worker-[0-1] slots=2",),
        num_gpus=1,
        env=("GREETING=hello  $x", "YES=yes"),
        fold=True,
        launcher=Launcher.PDSH,
        grace_s=2.5,
        script="train.py",
        args=("--lr", "1e-4", "--flag", "1.10", "a b"),
    )
    assert parse(["--job", str(path)]) == expected
    overridden = parse([f"--job={path}", "--num_gpus=2", "--launcher=ssh", "other.py", "x"])
    assert overridden is not None
    assert (overridden.num_gpus, overridden.launcher, overridden.script, overridden.args) == (
        2,
        Launcher.SSH,
        "other.py",
        ("x",),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("num_gpu: 2", "unknown key 'num_gpu'"),
        ("- a", "is no mapping"),
        ("a: [", "is no YAML"),
        ("args: x", "args is 'x'"),
        ("script: [x]", "script is ['x']"),
        ("num_gpus: many\nscript: x", "'many' is not a valid integer range"),
    ],
)
def test_bad_job_files(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        parse(["--job", str(path)])
    assert error in str(caught.value)
    assert caught.value.hint


printable = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
requests = st.builds(
    LaunchRequest,
    script=printable.filter(bool),
    args=st.lists(printable, max_size=4).map(tuple),
    num_gpus=st.none() | st.integers(-1, 99),
    launcher=st.sampled_from(Launcher),
    engine=st.sampled_from(Engine),
    local_rank_scheme=st.sampled_from(LocalRankScheme),
    env=st.lists(st.builds("{}={}".format, st.just("A"), printable), max_size=2).map(tuple),
    hosts=st.just(()) | st.just(("worker-0 slots=2",)),
    quiet=st.booleans(),
    grace_s=st.floats(0, 99),
)


@given(requests)
def test_a_written_job_file_means_the_same(request: LaunchRequest) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(write_job(request, COMMAND))
        file.flush()
        assert parse(["--job", file.name]) == request
