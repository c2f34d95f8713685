"""What is shown and what is kept: filters, folding, logs, the run folder, stdin to one rank."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.console_filter import shown_ranks
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.fold import WINDOW_S, Folded, Folder, ranges
from dslaunch.launcher.node_plan import NodePlan, RankPlan
from dslaunch.launcher.plan import LaunchPlan, Master
from dslaunch.launcher.rank_logs import RankLogs
from dslaunch.launcher.streams import Lines

PAYLOAD = str(Path(__file__).with_name("payload.py"))
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def plan(*sizes: int, own_node: int | None = None) -> LaunchPlan:
    first, nodes = 0, []
    for node_rank, size in enumerate(sizes):
        ranks = tuple(RankPlan(first + i, i, i, (), {}) for i in range(size))
        nodes.append(
            NodePlan(
                "job", node_rank, f"h{node_rank}", "/", "", {}, {}, (), None, None, ranks, 1, 9, True, "auto"
            )
        )
        first += size
    return LaunchPlan("job", "ssh", Master("h0", 1), first, tuple(nodes), own_node)


@pytest.mark.parametrize(
    ("console", "shown"),
    [
        ("all", {0, 1, 2, 3, 4}),
        ("rank0", {0}),
        ("first-of-node", {0, 2}),
        ("node", {0, 1}),
        ("0,3-4", {0, 3, 4}),
    ],
)
def test_who_is_shown(console: str, shown: set[int]) -> None:
    assert shown_ranks(console, plan(2, 3)) == shown


def test_a_pod_shows_its_own_ranks() -> None:
    assert shown_ranks("all", plan(2, 3, own_node=1)) == {2, 3, 4}
    assert shown_ranks("rank0", plan(2, 3, own_node=1)) == set()


@pytest.mark.parametrize("console", ["nobody", "5", "0-5", "", "1,", "-1"])
def test_who_cannot_be_shown(console: str) -> None:
    with pytest.raises(UsageError, match="--console"):
        shown_ranks(console, plan(2, 3))


def test_a_line_of_all_ranks_is_shown_at_once() -> None:
    folder = Folder(range(3))
    assert list(folder.add(2, 1, [b"a"], 0.0)) == []
    assert list(folder.add(0, 1, [b"a", b"b"], 0.1)) == []
    assert list(folder.add(1, 1, [b"a"], 0.2)) == [Folded(1, b"a", (0, 1, 2))]
    assert list(folder.expire(0.2 + WINDOW_S)) == [Folded(1, b"b", (0,))]


def test_a_rank_that_repeats_itself_is_not_folded_with_itself() -> None:
    folder = Folder(range(2))
    assert list(folder.add(0, 1, [b"a", b"a"], 0.0)) == [Folded(1, b"a", (0,))]
    assert list(folder.flush()) == [Folded(1, b"a", (0,))]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"x", b"y"]), st.floats(0, 1)), max_size=30))
def test_folding_loses_and_adds_nothing(history: list[tuple[int, bytes, float]]) -> None:
    folder, now, shown = Folder(range(4)), 0.0, []
    for rank, line, passed in history:
        now += passed
        shown += [*folder.expire(now), *folder.add(rank, 1, [line], now)]
    shown += folder.flush()
    assert sorted((rank, folded.line) for folded in shown for rank in folded.ranks) == sorted(
        (rank, line) for rank, line, _ in history
    )


def test_ranges() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_identical_lines_are_shown_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text("import os; print('same'); print('rank', os.environ['RANK'])")
    lines = run("--num_gpus=4", "--fold", "same.py").stdout.splitlines()
    assert "[localhost:0-3] same" in lines
    assert {f"[localhost:{i}] rank {i}" for i in range(4)} < set(lines)
    assert len(lines) == 5


def test_only_chosen_ranks_are_shown_and_all_are_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text(
        "import os, sys; print('out', os.environ['RANK']); print('err', file=sys.stderr)"
    )
    result = run("--num_gpus=3", "--console=1", "--log_dir=logs", "say.py")
    assert result.stdout == "out 1\n"
    for rank in range(3):
        assert sorted((tmp_path / f"logs/rank{rank}.log").read_text().split("\n")) == [
            "",
            "err",
            f"out {rank}",
        ]


def test_each_rank_log_shows_nothing(run: Run, tmp_path: Path) -> None:
    result = run(
        "--num_gpus=2", "--enable_each_rank_log=logs", "--no_python", "--no_local_rank", "echo", "hello"
    )
    assert result.stdout == ""
    files = sorted((tmp_path / "logs").iterdir())
    assert [re.sub(r"\d{14}", "", file.name) for file in files] == ["_rank0.log", "_rank1.log"]
    assert [file.read_text() for file in files] == ["hello\n", "hello\n"]


def test_a_log_that_grows_too_large_is_turned_over(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, "rank{}.log".format, max_file_bytes=100)
    for i in range(30):
        logs.write(Lines(0, 3, 1, (b"line %02d" % i,), b""))
    logs.close()
    kept = (tmp_path / "rank3.log.1").read_bytes() + (tmp_path / "rank3.log").read_bytes()
    assert kept.split(b"\n")[-2] == b"line 29"
    assert all(file.stat().st_size <= 108 for file in tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for flag in ("--log_dir", "--run_dir", "--enable_each_rank_log"):
        result = run(flag, "file/x", PAYLOAD, "echo")
        assert result.returncode == 2
        assert result.stdout == ""
        assert result.stderr.startswith("error: cannot write")


def test_the_run_folder_tells_the_story(run: Run, tmp_path: Path) -> None:
    result = run("--num_gpus=2", "--run_dir=run", "--env=MY_TOKEN=hush", PAYLOAD, "crash", "exit")
    assert result.returncode == 7
    record = json.loads((tmp_path / "run/plan.json").read_text())
    assert record["world_size"] == 2
    assert "hush" not in (tmp_path / "run/plan.json").read_text()
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[:3] == ["Opened", "Ready", "Plan"]
    assert kinds[-2:] == ["AgentClosed", "Verdict"]
    assert kinds.count("Started") == kinds.count("Exited") == 2
    verdict = json.loads((tmp_path / "run/verdict.json").read_text())
    assert (verdict["exit_code"], verdict["cause"]["kind"], verdict["cause"]["end"]["rank"]) == (
        7,
        "RankFailed",
        1,
    )
    assert "    I give up" in verdict["report"]
    assert (tmp_path / "run/logs/rank1.log").read_text().endswith("I give up\n")


def test_a_dry_run_masks_secrets(run: Run) -> None:
    for how in ("--dry_run", "--dry_run=json"):
        result = run(how, "--env=HF_TOKEN=hush", "--env=TOKENIZERS_PARALLELISM=false", PAYLOAD)
        assert "hush" not in result.stdout
        assert "HF_TOKEN" in result.stdout
        assert "false" in result.stdout


def test_what_is_typed_reaches_one_rank(tmp_path: Path, environ: dict[str, str], start: Start) -> None:
    (tmp_path / "read.py").write_text("import sys; print(repr(sys.stdin.read()))")
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"c\nq\n")
    os.close(write_fd)
    with start("--num_gpus=2", "--stdin=1", "read.py", stdin=read_fd) as process:
        out, _ = process.communicate(timeout=30)
    os.close(read_fd)
    assert sorted(out.decode().splitlines()) == ["[localhost:0] ''", "[localhost:1] 'c\\nq\\n'"]


def test_stdin_may_be_a_file(tmp_path: Path, start: Start) -> None:
    (tmp_path / "input").write_bytes(b"x" * 200_000)
    (tmp_path / "read.py").write_text("import sys; print(len(sys.stdin.read()))")
    with (
        (tmp_path / "input").open("rb") as typed,
        start("--stdin=0", "read.py", stdin=typed.fileno()) as process,
    ):
        out, _ = process.communicate(timeout=30)
    assert out == b"200000\n"


def test_the_pid_file_is_there_while_the_job_runs(start: Start, run: Run) -> None:
    with start("--save_pid", PAYLOAD, "wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        path = Path(f"/tmp/{process.pid}.deepspeed")
        assert path.read_text() == f"{process.pid}\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert not path.exists()
