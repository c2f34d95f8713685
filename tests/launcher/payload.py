"""What the launcher's tests run as ranks: one behaviour each, chosen by the first argument."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time


def echo(*args: str) -> None:
    """Tell what arrived, as one JSON line; bytes survive through surrogateescape."""
    names = os.environ.get("ECHO", "").split()
    print(
        json.dumps({"rank": os.environ["RANK"], "args": args, "env": {n: os.environ.get(n) for n in names}})
    )


def crash(how: str) -> None:
    """Rank 1 ends badly; the others would run for long, each with a child in a session of its own."""
    _long_child()
    print("up", flush=True)
    if os.environ["RANK"] == "1":
        if how == "raise":
            raise RuntimeError("boom")
        if how == "exit":
            print("I give up", file=sys.stderr)
            sys.exit(7)
        os.kill(os.getpid(), int(how))
    time.sleep(120)


def stubborn() -> None:
    """Ignores every polite signal, and so does its twice-forked child."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _long_child()
    print("up", flush=True)
    time.sleep(120)


def wait() -> None:
    """Tells the signals it gets."""
    signal.signal(signal.SIGUSR1, lambda *_: print("USR1", flush=True))
    print("up", flush=True)
    while True:
        time.sleep(120)


def kills_agent() -> None:
    """Rank 2 kills its parent."""
    print("up", flush=True)
    if os.environ["RANK"] == "2":
        time.sleep(0.5)  # the others' words go first
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(120)


def daemon() -> None:
    """Ends well, and leaves a child behind that holds its stdout."""
    subprocess.Popen(["sleep", "120"], start_new_session=True)
    print("done", flush=True)


def flood(num_lines: str) -> None:
    """Many lines of 100 bytes, each with its number."""
    rank = os.environ["RANK"]
    for i in range(int(num_lines)):
        print(f"{rank} {i} ".ljust(99, "x"))


def places() -> None:
    """Ranks 0 to 3 are each held by something else; rank 4 fails when they are."""
    rank = int(os.environ["RANK"])
    if rank == 4:
        time.sleep(1)
        sys.exit(3)
    (_sleep, endless, blocked, stopped)[rank]()


def hangs(how: str) -> None:
    """Rank 2 hangs its own way, the others wait for it."""
    print("up", flush=True)
    if os.environ["RANK"] == "2":
        globals()[how]()
    _sleep()


def records(how: str, dumps: str) -> None:
    """Ranks as torch's NCCL groups would have them: with a pipe, at a word through which they write a dump.

    Rank 0 has its dump written when it gives up by itself, where `how` says so.
    """
    rank = os.environ["RANK"]
    dump = os.path.join(dumps, f"rank_{rank}")
    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
    os.mkfifo(pipe)
    print("up", os.environ["TORCH_FR_BUFFER_SIZE"], flush=True)
    if how == "waits":
        threading.Thread(target=_dump_when_asked, args=(pipe, dump), daemon=True).start()
    elif rank == "0":
        _write_dump(dump)
        os.abort()
    _sleep()


def _dump_when_asked(pipe: str, dump: str) -> None:
    while True:
        with open(pipe, "rb") as file:
            file.read(1)
        print("preparing to dump", file=sys.stderr, flush=True)  # as torch does
        _write_dump(dump)


def _write_dump(dump: str) -> None:
    shutil.copy(dump, os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"])


def _sleep() -> None:
    time.sleep(120)


def endless() -> None:
    while True:
        pass


def blocked() -> None:
    os.read(os.pipe()[0], 1)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _long_child() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "120"])
        os._exit(0)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank=")]
    globals()[arguments[0]](*arguments[1:])
