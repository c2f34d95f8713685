"""Counts, on its host, what is alive of jobs by their mark. Standard library only; travels to hosts as text.

Says one JSON line when it begins and whenever a count changes: which processes it can see, and how many of
them carry each value of MARK, or are an agent, or an agent's guard, of ranks that carry it. Zombies are gone.
"""

import json
import os
import time

MARK = "DSLAUNCH_SELFTEST"
WATCH_LINE = "WATCHLINE"
_AGENT = b"dslaunch-agent"
_PERIOD_S = 0.05
_LEAST_REST = 4
"""A look takes at most a fifth of the time."""

Process = tuple[int, str]
"""A pid and the time it was started at, which together are never another's."""


def main() -> None:
    """Until it is ended."""
    if os.environ.get("LOCAL_RANK") != "0":
        while True:
            time.sleep(60)
    space = os.stat("/proc/self/ns/pid").st_ino
    with open("/proc/sys/kernel/random/boot_id") as file:
        me = {"node": os.environ.get("NODE_RANK"), "view": f"{file.read().strip()}-{space}"}
    servants: dict[str, set[Process]] = {}
    told = None
    while True:
        started_at = time.monotonic()
        counts = _count(servants)
        if counts != told:
            told = counts
            os.write(1, f"{WATCH_LINE} {json.dumps({**me, 'counts': counts})}\n".encode())
        time.sleep(max(_PERIOD_S, _LEAST_REST * (time.monotonic() - started_at)))


def _count(servants: dict[str, set[Process]]) -> dict[str, int]:
    """Living processes by mark; `servants` remembers agents and guards, which carry none."""
    parents: dict[int, tuple[int, Process]] = {}
    marked: dict[str, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                if fields[0] in ("Z", "X"):
                    continue
                parents[int(name)] = (int(fields[1]), (int(name), fields[19]))
                mark = _mark(name)
            except OSError:
                continue  # ended meanwhile, or another user's
            if mark:
                marked.setdefault(mark, []).append(int(name))
    for mark, pids in marked.items():
        agents = {parents[pid][0] for pid in pids if _is_agent(parents[pid][0])} & parents.keys()
        guards = {pid for pid, (parent, _) in parents.items() if parent in agents and _is_agent(pid)}
        servants.setdefault(mark, set()).update(parents[pid][1] for pid in agents | guards)
    living = {process for _, process in parents.values()}
    return {mark: len(marked.get(mark, [])) + len(known & living) for mark, known in servants.items()}


def _mark(pid: str) -> str:
    with open(f"/proc/{pid}/environ", "rb") as file:
        for variable in file.read().split(b"\0"):
            if variable.startswith(MARK.encode() + b"="):
                return variable.partition(b"=")[2].decode()
    return ""


def _is_agent(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _AGENT in file.read()
    except OSError:
        return False


if __name__ == "__main__":
    main()
