"""The lines that say why, out of many."""

from pathlib import Path

import pytest

from dslaunch.launcher.agent.evidence import OomCounts, explain, oom_counts
from dslaunch.launcher.last_words import MAX_LINES, last_words

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    main()",
    "torch.OutOfMemoryError: CUDA out of memory",
]
NOISE = [f"frame #{i}: c10::something()" for i in range(50)]


def test_without_a_traceback_the_last_lines() -> None:
    assert last_words(NOISE) == NOISE[-MAX_LINES:]
    assert last_words([]) == []


def test_the_traceback_and_not_what_follows_it() -> None:
    assert last_words(["step 1", *TRACEBACK, *NOISE]) == TRACEBACK


def test_the_hint_below_an_error() -> None:
    hinted = [*TRACEBACK, "hint: did you mean zero_optimization?"]
    assert last_words([*hinted, *NOISE]) == hinted
    prefixed = [f"[rank1]: {line}" for line in hinted]
    assert last_words([*prefixed, *NOISE]) == prefixed


def test_the_last_of_several() -> None:
    during = ["", "During handling of the above exception, another exception occurred:", ""]
    second = [TRACEBACK[0], *TRACEBACK[1:3], "KeyError: 'x'"]
    assert last_words([*TRACEBACK, *during, *second]) == second


def test_a_traceback_behind_a_prefix() -> None:
    prefixed = [f"[rank1]: {line}" for line in TRACEBACK]
    assert last_words([*prefixed, *NOISE]) == prefixed


def test_an_unfinished_traceback_is_shown_to_its_end() -> None:
    assert last_words(TRACEBACK[:-1]) == TRACEBACK[:-1]


def test_an_error_without_words() -> None:
    assert last_words([*TRACEBACK[:-1], "AssertionError", "more"]) == [*TRACEBACK[:-1], "AssertionError"]


def test_a_long_traceback_keeps_its_ends() -> None:
    frames = [f"  frame {i}" for i in range(100)]
    words = last_words([TRACEBACK[0], *frames, "ValueError: deep"])
    assert len(words) == MAX_LINES + 1
    assert (words[0], words[-1]) == (TRACEBACK[0], "ValueError: deep")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for path, text in {
        "proc/self/cgroup": "0::/job\n",
        "proc/vmstat": "nr_free_pages 1\noom_kill 4\n",
        "sys/fs/cgroup/job/memory.events": "low 0\noom 1\noom_kill 1\n",
        "sys/fs/cgroup/job/memory.max": f"{1 << 30}\n",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def test_memory_that_ran_out(host: Path) -> None:
    assert oom_counts(str(host)) == OomCounts(1, 4)
    root = str(host)
    assert explain(-9, 77, OomCounts(0, 3), root) == (
        "out of memory: the kernel killed it at its cgroup's limit of 1024 MiB"
    )
    assert explain(-9, 77, OomCounts(1, 3), root).startswith(
        "out of memory: the kernel's OOM killer acted on this host"
    )
    assert explain(-9, 77, OomCounts(1, 4), root).startswith("not by dslaunch")


def test_other_ends(host: Path) -> None:
    assert explain(-7, 77, OomCounts(0, 0), str(host)).startswith("often a full /dev/shm: ")
    assert explain(-11, 77, OomCounts(0, 0), str(host)) == ""
    assert explain(3, 77, OomCounts(0, 0), str(host)) == ""
    assert oom_counts(str(host / "nowhere")) == OomCounts(0, 0)


def test_the_kernels_log_names_the_process_that_it_killed(host: Path) -> None:
    log = host / "dev/kmsg"
    log.parent.mkdir(exist_ok=True)
    log.write_text(
        "4,1,10,-;Out of memory: Killed process 7 (python) total-vm:1kB\n"
        "3,2,11,-;Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB\n"
        "6,3,12,-;oom_reaper: reaped process 77 (python)\n"
    )
    assert explain(-9, 77, OomCounts(1, 4), str(host)) == (
        "out of memory, by the kernel's log: "
        "Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB, anon-rss:8kB"
    )
    assert explain(-9, 78, OomCounts(1, 4), str(host)).startswith("not by dslaunch")
