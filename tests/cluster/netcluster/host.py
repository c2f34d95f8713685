"""One host: the namespaces held by its init, the sshd in them, and all that runs there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from netcluster.command import SBIN, tool
from netcluster.errors import ClusterError
from netcluster.files import INIT_IDLE
from netcluster.process import Process, end_all, in_netns, inner_pid, send, wait_until

_READY_S = 30.0
_STOP_S = 5.0
_FADE_S = 2.0


class Host:
    """One host of a cluster, whether it runs or not. Its network namespace exists; network.py made it."""

    def __init__(self, name: str, ip: str, netns: str, state_dir: Path) -> None:
        self.name = name
        self.ip = ip
        self._netns = netns
        self._state_dir = state_dir
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start init and, through it, sshd; `wait_ready` waits for them."""
        env = {
            "PATH": f"/usr/local/bin:/usr/bin:/bin:{SBIN}",
            "HOST": self.name,
            "STATE": str(self._state_dir),
            "SSHD": tool("sshd"),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
        }
        enter = [tool("ip"), "netns", "exec", self._netns]
        own = ["--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
        with open(self._log("init.log"), "ab") as log:
            self._child = subprocess.Popen(
                [*enter, tool("unshare"), *own, "sh", str(self._state_dir / "init.sh")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd="/",
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until sshd answers. Raises ClusterError, with the end of the host's logs, if it does not."""
        if not wait_until(self.answers, _READY_S):
            logs = [self._log(name) for name in ("init.log", "sshd.log")]
            tail = "".join(log.read_text()[-1000:] for log in logs if log.exists())
            raise ClusterError(f"{self.name}: no sshd after {_READY_S:g} s\n{tail}")

    def answers(self) -> bool:
        """Whether its SSH server greets a caller within a second."""
        with contextlib.suppress(OSError), socket.create_connection((self.ip, 22), timeout=1.0) as connection:
            return connection.recv(64).startswith(b"SSH-")
        return False

    def processes(self) -> list[Process]:
        """All that runs on it, its own machinery included."""
        return in_netns(self._netns)

    def user_processes(self) -> list[Process]:
        """All that runs on it besides init and the SSH server's own processes."""
        return [process for process in self.processes() if not _is_machinery(process)]

    def init(self) -> Process | None:
        """PID 1 of the host, or None where the host does not run."""
        return next((process for process in self.processes() if inner_pid(process.pid) == 1), None)

    def enter_argv(self, argv: Sequence[str]) -> list[str]:
        """The argv that runs `argv` in all of its namespaces, in the caller's folder. Raises ClusterError."""
        init = self.init()
        if init is None:
            raise ClusterError(f"{self.name} is not running: boot it first")
        enter = [tool("nsenter"), "-t", str(init.pid), "-m", "-u", "-i", "-n", "-p"]
        return [*enter, "sh", "-c", 'cd "$1"; shift; exec "$@"', "sh", os.getcwd(), *argv]

    def end(self) -> None:
        """SIGKILL everything on it. Raises ClusterError where something survives."""
        init = self.init()
        if init is not None:
            send([init], signal.SIGKILL)  # the PID namespace goes with its init
            self.thaw()
            wait_until(
                lambda: not self.processes(), _FADE_S
            )  # unshare and nsenter reap their children and end
        if not end_all(self.processes):
            raise ClusterError(f"{self.name}: processes survive SIGKILL")
        self.reap()

    def reap(self) -> None:
        """Wait for the process that `start` left behind, once all on the host is ended."""
        if self._child is not None:
            self._child.wait()
            self._child = None

    def freeze(self) -> None:
        """SIGSTOP everything on it. Raises ClusterError where something goes on."""

        def stopped() -> bool:
            moving = [process for process in self.processes() if process.state not in "Tt"]
            send(moving, signal.SIGSTOP)
            return not moving

        if not wait_until(stopped, _STOP_S):
            raise ClusterError(f"{self.name}: processes do not stop")

    def thaw(self) -> None:
        """SIGCONT everything on it."""
        send(self.processes(), signal.SIGCONT)

    def _log(self, name: str) -> Path:
        return self._state_dir / self.name / name


def _is_machinery(process: Process) -> bool:
    return (
        inner_pid(process.pid) in (None, 1)  # None: unshare and nsenter, which hold the door from outside
        or process.name.startswith("sshd")
        or process.command == INIT_IDLE
    )
