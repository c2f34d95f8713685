"""Jobs that make no progress: replayed to the watch with their times, and real ones."""

import asyncio
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dslaunch.launcher import hang_guard, wire
from dslaunch.launcher.census_taker import CensusTaker
from dslaunch.launcher.errors import EXIT_HUNG
from dslaunch.launcher.hang import HangWatch, Suspicion
from dslaunch.launcher.hang_guard import HangGuard
from dslaunch.launcher.hang_limit import DEFAULT, HangLimit, parse_hang_limit
from dslaunch.launcher.node_plan import NodePlan, RankPlan
from dslaunch.launcher.plan import LaunchPlan, Master
from dslaunch.launcher.supervise import FromAgent
from dslaunch.launcher.verdict import JobHung

SLEEP = "sleep" if sys.version_info >= (3, 11) else "select"
PAYLOAD = str(Path(__file__).with_name("payload.py"))


def plan_of(num_ranks: int) -> LaunchPlan:
    """One host."""
    ranks = tuple(RankPlan(rank, rank, rank, ("python",), {}) for rank in range(num_ranks))
    node = NodePlan("job", 0, "one", "/", "", {}, {}, (), None, None, ranks, 1.0, 15.0, True, "auto")
    return LaunchPlan("job", "local", Master("127.0.0.1", 29500), num_ranks, (node,), None)


class Replay:
    """A job of several ranks, told second by second; `suspicions` are what the watch has said."""

    def __init__(self, num_ranks: int, after_s: float, *, is_strict: bool = False) -> None:
        self.watch = HangWatch(after_s, is_strict=is_strict)
        self.now = 1000.0
        self.cpu_ms = [0.0] * num_ranks
        self.suspicions: list[Suspicion] = []
        for rank in range(num_ranks):
            self.watch.on_input(FromAgent(0, wire.Started(rank, 100 + rank)), self.now)

    def go(self, seconds: int, cpu: Iterable[float], writes: int | None = None, every_s: int = 1) -> None:
        """Ranks use `cpu` each (1.0 is a whole one); the rank `writes` writes now and then."""
        used = list(cpu)
        for second in range(seconds):
            self.now += 1
            self.cpu_ms = [ms + 1000 * rate for ms, rate in zip(self.cpu_ms, used, strict=True)]
            told = tuple(f"{rank} S {int(ms)} 1000" for rank, ms in enumerate(self.cpu_ms))
            self.watch.on_input(FromAgent(0, wire.Vitals(int(self.now * 1000), told)), self.now)
            if writes is not None and second % every_s == 0:
                self.watch.on_input(FromAgent(0, wire.Output(writes, 1, "step\n")), self.now)
            suspicion = self.watch.suspicion(self.now)
            self.suspicions += [] if suspicion is None else [suspicion]


def test_a_healthy_job_with_pauses_of_ten_minutes_is_not_suspected_at_the_default() -> None:
    job = Replay(4, DEFAULT.after_s)
    for _ in range(4):
        job.go(600, [1.0] * 4, writes=0, every_s=30)
        job.go(600, [0.3, 0.0, 0.0, 0.0])  # rank 0 evaluates, the others wait without spinning
        job.go(300, [0.9] * 4, writes=2, every_s=100)
        job.go(600, [0.001] * 4)  # slow data: everybody waits for a disk
        job.go(60, [1.0] * 4, writes=1, every_s=10)
    assert job.suspicions == []


def test_a_job_that_only_computes_is_not_suspected() -> None:
    job = Replay(2, 60)
    job.go(3600, [0.7, 1.0])
    assert job.suspicions == []


def test_ranks_that_wait_for_one_in_a_loop_are_suspected_at_the_limit() -> None:
    job = Replay(3, 60)
    job.go(100, [1.0] * 3, writes=0)
    job.go(59, [0.0, 1.0, 0.01])
    assert job.suspicions == []
    job.go(2, [0.0, 1.0, 0.01])
    assert job.suspicions[0].idle == (0, 2)
    assert job.suspicions[0].what == "no rank has written anything, and ranks 0,2 used no CPU"


def test_what_a_busy_rank_uses_in_the_background_is_not_work() -> None:
    """Threads of a library that go on while the rank waits."""
    job = Replay(2, 60)
    job.go(100, [1.0, 1.0], writes=0)
    job.go(70, [0.05, 0.05])
    assert job.suspicions[0].idle == (0, 1)


def test_a_host_that_tells_nothing_is_idle() -> None:
    job = Replay(1, 10)
    job.go(20, [1.0], writes=0)
    assert job.watch.suspicion(job.now + 11) == Suspicion(11.0, (0,))


def test_spinning_ranks_are_looked_at_when_regular_output_stops() -> None:
    job = Replay(2, 60)
    job.go(100, [1.0, 1.0], writes=0, every_s=10)
    job.go(70, [1.0, 1.0])
    assert job.suspicions[0].idle == ()
    job.watch.begin_anew(job.now)
    job.suspicions.clear()
    job.go(59, [1.0, 1.0])
    assert job.suspicions == []


def test_busy_ranks_that_never_wrote_are_looked_at_where_the_limit_is_strict() -> None:
    job = Replay(2, 60, is_strict=True)
    job.go(59, [1.0, 0.15])  # one waits for a device, the other's libraries poll
    assert job.suspicions == []
    job.go(2, [1.0, 0.15])
    assert job.suspicions[0] == Suspicion(60.0, ())


def test_longer_pauses_before_make_for_patience() -> None:
    job = Replay(2, 60)
    for _ in range(5):
        job.go(55, [1.0, 1.0], writes=0, every_s=55)
    job.go(100, [1.0, 1.0])
    assert job.suspicions == []


def test_output_of_any_rank_is_progress_and_an_ended_rank_is_not_idle() -> None:
    job = Replay(2, 10)
    job.go(60, [0.0, 0.0], writes=1, every_s=5)
    assert job.suspicions == []
    job.watch.on_input(FromAgent(0, wire.Exited(0, 0, 1, "")), job.now)
    assert job.watch.suspicion(job.now + 60) == Suspicion(job.now + 60 - job.watch._wrote_at, (1,))


class Site:
    """Ranks of one host that write regularly, then nothing; `places` are their lines at each further look."""

    def __init__(
        self, places: list[tuple[int, ...]], state: str = "R", speaks_at_look: int | None = None
    ) -> None:
        self._speaks_at_look = speaks_at_look
        self._places = places
        self._state = state
        self._num_looks = 0
        self.found: list[JobHung] = []

    def _answer(self, message: wire.Down) -> None:
        assert isinstance(message, wire.Census)
        lines = self._places[min(self._num_looks, len(self._places) - 1)]
        self._num_looks += 1
        if self._num_looks == self._speaks_at_look:
            self._guard.on_input(FromAgent(0, wire.Output(0, 1, "here\n")))
        for rank, line in enumerate(lines):
            text = f'Thread 0x1 (most recent call first):\n  File "/job/train.py", line {line} in step\n'
            self._taker.on_input(FromAgent(0, wire.Stack(rank, 1, self._state, "", text)))
        self._taker.on_input(FromAgent(0, wire.CensusEnd()))

    async def watch(self, cpu: float) -> None:
        """Until it is found to hang, or has been looked at as often as there are places."""
        plan = plan_of(len(self._places[0]))
        self._taker = CensusTaker(plan, self._answer)
        self._guard = guard = HangGuard(
            HangLimit(0.2, kill=True), self._taker, self.found.append, lambda seen: None, is_alone=True
        )
        ranks = range(len(self._places[0]))
        for rank in ranks:
            guard.on_input(FromAgent(0, wire.Started(rank, 1)))
        guarding = asyncio.create_task(guard.guard())
        cpu_ms = 0.0
        for beat in range(1000):
            told = tuple(f"{rank} {self._state} {int(cpu_ms)} 1" for rank in ranks)
            guard.on_input(FromAgent(0, wire.Vitals(1 + 10 * beat, told)))
            cpu_ms += 10 * cpu
            if beat < 30:
                guard.on_input(FromAgent(0, wire.Output(0, 1, "step\n")))
            await asyncio.sleep(0.01)
            if self.found or self._num_looks >= len(self._places):
                break
        await asyncio.sleep(0.05)
        guarding.cancel()


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_S", "_BETWEEN_BUSY_LOOKS_S", "_BETWEEN_IDLE_LOOKS_S"):
        monkeypatch.setattr(hang_guard, name, 0.01)


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize(
    ("cpu", "places", "hangs"),
    [
        (1.0, [(7, 7)] * 6, True),
        (1.0, [(7, 7), (7, 8), (7, 9), (7, 8)], True),
        (1.0, [(7, 7), (7, 7), (8, 8)], False),
        (0.0, [(7, 9)] * 6, True),
        (0.0, [(7, 9), (8, 9)], False),
    ],
)
def test_only_who_is_at_the_same_place_again_hangs(
    cpu: float, places: list[tuple[int, ...]], hangs: bool
) -> None:
    site = Site(places)
    asyncio.run(site.watch(cpu))
    assert bool(site.found) == hangs
    if cpu and hangs and places[0] == places[1]:
        assert site.found[0].what == "no rank has written anything, and none has moved from its place"
        assert site.found[0].places == ("ranks 0-1 in step train.py:7, running",)


@pytest.mark.usefixtures("quick_looks")
def test_a_word_during_the_looks_saves_the_job() -> None:
    site = Site([(7, 7)] * 4, speaks_at_look=2)
    asyncio.run(site.watch(1.0))
    assert site.found == []


@pytest.mark.usefixtures("quick_looks")
def test_a_stopped_rank_needs_no_second_look() -> None:
    site = Site([(7, 7), (8, 8)], state="T")
    asyncio.run(site.watch(0.0))
    assert site.found[0].ranks == ()
    assert site.found[0].places == ("ranks 0-1 stopped (SIGSTOP) in step train.py:8",)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("off", HangLimit(math.inf, kill=False)),
        ("warn", DEFAULT),
        ("warn:1200", HangLimit(1200, kill=False)),
        ("2.5", HangLimit(2.5, kill=True)),
    ],
)
def test_limits(text: str, limit: HangLimit) -> None:
    assert parse_hang_limit(text) == limit
    assert parse_hang_limit(str(limit)) == limit


@pytest.mark.parametrize(
    "text", ["", "on", "warn:", "warn:x", ":5", "kill:5", "-1", "1.9", "nan", "inf", "1e999"]
)
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text) or "not off"):
        parse_hang_limit(text)


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("endless", "in endless payload.py:N, running"),
        ("blocked", "in blocked payload.py:N, waits in read of pipe"),
        ("stopped", "stopped (SIGSTOP)"),
    ],
)
def test_the_rank_that_holds_the_others_up_is_named(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path, how: str, where: str
) -> None:
    result = run("--num_gpus=4", "--hang_timeout=2", "--run_dir=run", PAYLOAD, "hangs", how)
    assert result.returncode == EXIT_HUNG, result.stderr
    said = re.sub(r":\d+", ":N", result.stderr.partition("error: ")[2]).splitlines()
    used = "0-1,3" if how == "endless" else "0-3"
    assert said == [
        f"the job hangs: for 2 s no rank has written anything, and ranks {used} used no CPU",
        f"dslaunch:     ranks 0-1,3 in _sleep payload.py:N, waits in {SLEEP}",
        f"dslaunch:     rank 2 {where}  <- the odd ones",
        "dslaunch: ended because of it: ranks 0, 1, 2, 3",
    ]
    assert "rank 2 on localhost" in (tmp_path / "run/census/hang.txt").read_text()


SPINS = """
import os, threading, time
def poll():
    while True:
        until = time.monotonic() + 0.03
        while time.monotonic() < until: pass
        time.sleep(0.1)
if os.environ["RANK"] == "1":
    threading.Thread(target=poll, daemon=True).start()
    time.sleep(3600)
while True: pass
"""


def test_ranks_that_use_their_cpus_hang_where_nothing_moves(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    """As where a rank waits for a GPU: it spins, and the threads of its libraries poll."""
    (tmp_path / "spins.py").write_text(SPINS)
    result = run("--num_gpus=2", "--hang_timeout=2", "spins.py")
    assert result.returncode == EXIT_HUNG, result.stderr
    assert "and none has moved from its place" in result.stderr


def test_a_warning_ends_nothing(run: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    code = "import time; print('up', flush=True); time.sleep(3.5)"
    result = run(
        "--num_gpus=2", "--hang_timeout=warn:2", "--no_local_rank", "--no_python", "python3", "-c", code
    )
    assert result.returncode == 0, result.stderr
    assert (
        "dslaunch: no progress for 2 s: no rank has written anything, and ranks 0-1 used no CPU"
        in result.stderr
    )
    assert result.stderr.count("nothing is done about it: see --hang_timeout") == 1
