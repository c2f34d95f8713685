"""From what a run has kept to its page: parts by values, the command by a real run, the look in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.view.history import history
from dslaunch.launcher.view.lanes import in_words
from dslaunch.launcher.view.page import page
from dslaunch.launcher.view.read import read_run, write_page
from dslaunch.launcher.view.usage import RankSample, activities, thinned, usage

S = 10**9
START_NS = 1_800_000_000 * S
CTL = (sys.executable, "-c", "import sys; from dslaunch.launcher.ctl.cli import main; sys.exit(main())")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def event(at_s: float, name: str, **fields: object) -> dict[str, object]:
    return {"launcher_time_ns": START_NS + int(at_s * S), "event": name, **fields}


def attempt(
    at_s: float, num_nodes: int, num_slots: int, length_s: float, failed: int = -1
) -> Iterator[dict[str, object]]:
    """What a launcher tells of one start of a job, in which a rank may fail."""
    nodes = [
        {"host": f"node-{i:03}", "ranks": {str(i * num_slots + slot): slot for slot in range(num_slots)}}
        for i in range(num_nodes)
    ]
    for i in range(num_nodes):
        yield event(at_s + 0.1 + i / 1000, "Ready", node_rank=i, hostname=f"node-{i:03}")
    yield event(at_s + 0.5, "Plan", job_id="4f", master={"addr": "10.0.0.1", "port": 29500}, nodes=nodes)
    ranks = [(i, i * num_slots + slot) for i in range(num_nodes) for slot in range(num_slots)]
    for i, rank in ranks:
        yield event(at_s + 0.6 + rank / 1e4, "Started", node_rank=i, rank=rank, pid=rank)
        yield event(at_s + 3.0 + rank / 1e3, "FirstOutput", node_rank=i, rank=rank)
    for i, rank in ranks:
        code = 0 if failed < 0 else 1 if rank == failed else -15
        yield event(at_s + length_s, "Exited", node_rank=i, rank=rank, returncode=code, time_ns=0, note="")
    for i in range(num_nodes):
        yield event(at_s + length_s, "AgentClosed", node_rank=i, reason="its agent exited with code 0")
    report = [] if failed < 0 else [f"error: rank {failed} exited with code 1", "its last lines:"]
    yield event(at_s + length_s, "Verdict", exit_code=int(failed >= 0), cause=None, report=report)


def kept(folder: Path, num_nodes: int, num_slots: int, length_s: float = 100.0) -> Path:
    """A run's folder: a rank fails, the job is started again and ends well."""
    (folder / "logs").mkdir(parents=True)
    events = [
        event(0, "Opened"),
        *attempt(0, num_nodes, num_slots, length_s, failed=1),
        *attempt(length_s + 1, num_nodes, num_slots, length_s),
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    with (folder / "usage.jsonl").open("w") as file:
        for at_s in range(5, int(2 * length_s), 2):
            for i in range(num_nodes):
                ranks = [
                    f"{i * num_slots + slot} S {at_s * 900 if slot else 1000} {at_s * 9000 + slot}"
                    for slot in range(num_slots)
                ]
                devices = [f"{slot} {70000 + at_s} {90 - slot}" for slot in range(num_slots)]
                for what, used in (("ranks", ranks), ("devices", devices)):
                    sample = {"launcher_time_ns": START_NS + at_s * S, "node_rank": i, what: used}
                    file.write(json.dumps(sample) + "\n")
    plan = {"nodes": [{"ranks": [{"argv": ["python", "train me.py"]}]}]}
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


class _Checker(HTMLParser):
    """Counts elements, and refuses what is left open or loads something."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "onload", "onerror"} & {name for name, _ in attrs}
        for name in (
            tag,
            *(f".{word}" for key, value in attrs if key == "class" for word in (value or "").split()),
        ):
            self.counts[name] = self.counts.get(name, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Mapping[str, int]:
    """How often elements and classes are in a page that is whole and needs nothing else."""
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    assert "http" not in text
    assert "url(" not in text
    assert "<script" not in text
    return checker.counts


def test_a_history_is_that_of_the_last_run_and_survives_a_torn_line() -> None:
    events = [event(-9, "Opened"), event(-8, "Verdict", exit_code=9, report=[]), event(0, "Opened")]
    lines = [json.dumps(one) for one in [*events, *attempt(0, 2, 2, 8.0, failed=3), *attempt(9, 1, 2, 5.0)]]
    told = history([*lines, '{"launcher_time_ns": 18'])
    assert (told.opened_ns, told.length_s) == (START_NS, 14.0)
    first, second = told.attempts
    assert (first.exit_code, first.report[0], second.exit_code) == (1, "error: rank 3 exited with code 1", 0)
    assert (second.opened_s, second.planned_s, second.ended_s) == (9.1, 9.5, 14.0)
    assert [node.host for node in first.nodes.values()] == ["node-000", "node-001"]
    assert [(rank.rank, rank.slot, rank.returncode) for rank in first.ranks] == [
        (0, 0, -15),
        (1, 1, -15),
        (2, 0, -15),
        (3, 1, 1),
    ]


def test_a_run_that_goes_on_has_no_end() -> None:
    lines = [json.dumps(one) for one in [event(0, "Opened"), *list(attempt(0, 1, 1, 8.0))[:4]]]
    (only,) = history(lines).attempts
    assert (only.exit_code, only.ended_s, only.ranks[0].ended_s) == (None, None, None)


def test_nothing_is_no_run(tmp_path: Path) -> None:
    for lines in ([], ["", "x", "[]", '{"event": "Opened"}']):
        with pytest.raises(ValueError, match="no events"):
            history(lines)
    with pytest.raises(UsageError, match="no run in"):
        read_run(tmp_path)


def test_what_ranks_did_between_samples() -> None:
    told = [
        (0, "R", 0.0),
        (2, "R", 2.0),
        (4, "S", 2.0),
        (6, "D", 2.0),
        (8, "T", 2.0),
        (10, "T", 2.0),
        (12, "R", 3.0),
    ]
    samples = [RankSample(at_s, state, cpu_s, 0) for at_s, state, cpu_s in told]
    assert list(activities(samples)) == [
        (0, 2, "busy"),
        (2, 4, "idle"),
        (4, 6, "blocked"),
        (6, 10, "stopped"),
        (10, 12, "busy"),
    ]
    assert list(activities(samples[:1])) == list(activities([])) == []


@given(st.lists(st.integers(), max_size=200), st.integers(2, 50))
def test_a_thinned_series_keeps_its_ends(series: list[int], most: int) -> None:
    left = thinned(series, most)
    assert len(left) == min(len(series), most)
    if series:
        assert (left[0], left[-1]) == (series[0], series[-1])


def test_usage_of_a_part_of_a_run() -> None:
    lines = [
        json.dumps({"launcher_time_ns": START_NS + at_s * S, "node_rank": 1, "ranks": ["3 S 1500 1024"]})
        for at_s in (1, 2, 3)
    ]
    lines.append(json.dumps({"launcher_time_ns": START_NS + 2 * S, "node_rank": 1, "devices": ["0 1024 50"]}))
    found = usage(lines, START_NS, 1.5, 2.5)
    assert found.ranks == {3: [RankSample(2.0, "S", 1.5, 1 << 20)]}
    (device,) = found.devices[1, 0]
    assert (device.memory_bytes, device.busy) == (1 << 30, 0.5)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.25, "0.25 s"), (59.9, "59.9 s"), (200.4, "3:20"), (7400, "2:03:20")]
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_page_shows_every_attempt_rank_and_device(tmp_path: Path) -> None:
    text = page(read_run(kept(tmp_path / "run 7", 2, 2)))
    counts = checked(text)
    assert counts["figure"] == 4
    assert counts["polyline"] == 2 * 4 * 3
    assert counts[".bad"] == 1 + 2 + 4  # the table's cell, the legends and every rank of the first attempt
    assert counts[".idle"] == 2 + 4  # the legends, and the first rank of each host: it used no processor time
    for words in ("<title>run 7</title>", "python -u &#x27;train me.py&#x27;", "every rank ended with 0"):
        assert words.replace("-u ", "") in text


def test_a_thousand_ranks_stay_under_two_megabytes(tmp_path: Path) -> None:
    text = page(read_run(kept(tmp_path / "big", 125, 8, length_s=60.0)))
    counts = checked(text)
    assert counts[".lane"] > 1000
    assert counts["polyline"] == 3 * 1000
    assert len(text.encode()) < 2_000_000


def test_what_programs_and_hosts_say_cannot_change_the_page(tmp_path: Path) -> None:
    folder = kept(tmp_path / "<script>alert(1)</script>", 1, 2)
    evil = '<img src=x onerror="alert(1)"></pre><script>'
    text = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text(
        text.replace("node-000", json.dumps(evil)[1:-1]).replace("its last lines:", json.dumps(evil)[1:-1])
    )
    (folder / "census").mkdir()
    (folder / "census/end.txt").write_text(f"\x1b[31m{evil}\x1b[0m")
    shown = page(read_run(folder))
    checked(shown)
    assert "\x1b" not in shown


def test_the_command_makes_a_page_of_a_real_run(run: Run, environ: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time; print('up', flush=True); time.sleep(1.2); 1 / int(os.environ['RANK'])"
    )
    failed = run("--num_gpus=2", "--accelerator=cpu", "--preflight=fast", "--run_dir=kept", "train.py")
    assert failed.returncode == 1, failed.stderr
    ran = subprocess.run(
        [*CTL, "view", "kept"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("kept/view.html\n", "")
    text = (tmp_path / "kept/view.html").read_text()
    checked(text)
    for words in (
        "Last lines of rank 0",
        "ZeroDivisionError",
        'class="verdict failed"',
        "rank 0 (local rank 0",
    ):
        assert words in text
    nowhere = subprocess.run(
        [*CTL, "view", "none"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert (
        nowhere.stderr == "error: no run in none\nhint: name the folder that dslaunch --run_dir was given\n"
    )


MEASURE = """<script>
const width = (one) => one.getBoundingClientRect().width;
const seen = (words) => [...document.querySelectorAll(words)].filter((one) => width(one) > 1);
document.title = JSON.stringify({
  bars: seen(".track i").length, lines: seen("polyline").length,
  wide: document.documentElement.scrollWidth > innerWidth,
  paper: getComputedStyle(document.body).backgroundColor,
});
</script>"""


@pytest.mark.parametrize(("scheme", "paper"), [(1, "rgb(255, 255, 255)"), (0, "rgb(21, 24, 28)")])
def test_a_browser_draws_it_from_disk(tmp_path: Path, scheme: int, paper: str) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    write_page(kept(tmp_path / "run", 4, 8), tmp_path / "view.html")
    measured = tmp_path / "measured.html"
    measured.write_text((tmp_path / "view.html").read_text().replace("</body>", MEASURE + "</body>"))
    command = [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--no-first-run", "--window-size=1200,900"),
        *(f"--user-data-dir={tmp_path}/profile", f"--blink-settings=preferredColorScheme={scheme}"),
        *("--dump-dom", f"file://{measured}"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", ran.stdout)
    assert title is not None
    found = json.loads(title[1])
    assert found["bars"] > 2 * 32
    assert found["lines"] == 2 * 32 * 3
    assert (found["wide"], found["paper"]) == (False, paper)
