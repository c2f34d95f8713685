"""A rank that is hard to end: MANNERS [ACT VICTIM]. Standard library only; it may travel to hosts as text.

MANNERS are `heeds` (polite signals end it), `ignores`, or `mixed`: by rank, some ignore signals, some stand
stopped, some flood their output. Each has a child, forked twice, in a session of its own, that takes
signals as it does.

At SIGUSR1 the rank VICTIM (any, where none is named) says FAULTLINE and, DELAY_S later, does ACT: `exit`
(with 7), `kill` (itself), `wrapper` (its parent, which is the rank that was launched), `agent`, or `none`.
"""

import os
import signal
import sys
import time

UP_LINE = b"RANKLINE"
FAULT_LINE = b"FAULTLINE"
DELAY_S = 0.3
"""Time for the word to be passed on, before whoever passes it on is killed."""
_LIFE_S = 300
_POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BURST = b"flood ".ljust(99, b"x") + b"\n"


def main(manners: str, act: str = "exit", victim: str = "") -> None:
    """Never returns before _LIFE_S have passed."""
    rank = os.environ.get("RANK", "0")
    is_victim = victim in ("", rank)
    if manners == "mixed":
        manners = "ignores" if is_victim else ("ignores", "stops", "floods")[int(rank) % 3]
    if is_victim and act == "wrapper":
        _wrap()
    signal.signal(signal.SIGUSR1, lambda *_: _do(act, victim) if is_victim else None)
    if manners != "heeds":
        for number in _POLITE:
            signal.signal(number, signal.SIG_IGN)
    _leave_child()
    os.write(1, b"%s %d\n" % (UP_LINE, os.getpid()))
    if manners == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    end = time.monotonic() + _LIFE_S
    while time.monotonic() < end:
        if manners == "floods":
            os.write(1, _BURST * 400)
        time.sleep(0.01 if manners == "floods" else 1)


def _do(act: str, victim: str) -> None:
    if victim:
        os.write(1, FAULT_LINE + b"\n")
        time.sleep(DELAY_S)
    if act == "exit":
        os._exit(7)
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if act in ("wrapper", "agent"):
        os.kill(os.getppid(), signal.SIGKILL)


def _wrap() -> None:
    """Go on as a child; what was launched only waits for it, and passes the signal on."""
    worker = os.fork()
    if worker == 0:
        return
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(worker, signal.SIGUSR1))
    os._exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) % 256)


def _leave_child() -> None:
    read_fd, write_fd = os.pipe()  # closed as the child becomes `sleep`: until then it looks like a rank
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", str(_LIFE_S)])
        os._exit(0)
    os.wait()
    os.close(write_fd)
    os.read(read_fd, 1)
    os.close(read_fd)


if __name__ == "__main__":
    main(*sys.argv[1:])
