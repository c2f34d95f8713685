"""One rank's process: started in its own session, bound to the agent's life, read through two pipes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from dslaunch.launcher.agent import flight, progress
from dslaunch.launcher.agent.binding import bind, binding_environment
from dslaunch.launcher.agent.cgroup import RankCgroup
from dslaunch.launcher.agent.hook import HookFolder
from dslaunch.launcher.node_plan import NodePlan, RankPlan

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let descendants whose parent dies become children of this process (prctl(2))."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _between_fork_and_exec(agent: int, cores: Sequence[int], cgroup: RankCgroup) -> Callable[[], None]:
    """For the child: SIGKILL when the agent dies, also when it already has; its cgroup and cores, if any."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != agent:
            os.kill(os.getpid(), signal.SIGKILL)
        cgroup.enter()
        if cores:
            bind(cores)

    return prepare


def environment(
    plan: NodePlan, rank: RankPlan, cores: Sequence[int], folder: HookFolder | None
) -> dict[str, str]:
    """What a rank on those cores finds, with the hook of `folder`."""
    added = {**plan.env, **rank.env}
    expanded = {name: os.path.expandvars(added[name]) for name in plan.expanded if name in added}
    told = {progress.VARIABLE: progress.path(plan.node_id)}
    env = {**plan.defaults, **os.environ, **told, **added, **expanded}
    env |= binding_environment(cores) if cores else {}
    return env if folder is None else env | folder.environment(env) | flight.environment(folder.path, env)


class RankProcess:
    """A running rank. `returncode` is None until the agent reaped it."""

    def __init__(
        self,
        plan: NodePlan,
        rank: RankPlan,
        cores: Sequence[int],
        folder: HookFolder | None,
        cgroup: RankCgroup,
    ) -> None:
        """Fork and exec in `cgroup`, on `cores` where there are any, with the hook of `folder`.

        Raises OSError when the program cannot be run.
        """
        self.rank = rank.rank
        self.program = rank.argv[0]
        self.returncode: int | None = None
        self._process = subprocess.Popen(
            rank.argv,
            bufsize=0,
            stdin=subprocess.PIPE if rank.rank == plan.stdin_rank else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=plan.cwd,
            env=environment(plan, rank, cores, folder),
            start_new_session=True,
            preexec_fn=_between_fork_and_exec(os.getpid(), cores, cgroup),
        )
        self.pid = self._process.pid
        self.streams: dict[int, int] = {}
        """Open descriptors: fd -> 1 for stdout, 2 for stderr."""
        for stream, pipe in ((1, self._process.stdout), (2, self._process.stderr)):
            assert pipe is not None
            fd = pipe.fileno()
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):  # over the user's pipe quota the default size works too
                fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
            self.streams[fd] = stream

        self._fed = b""
        self._fed_last = False
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def stdin_fd(self) -> int | None:
        """The pipe into the rank, where it has one that is still open."""
        stdin = self._process.stdin
        return None if stdin is None or stdin.closed else stdin.fileno()

    def feed(self, data: bytes, *, last: bool) -> None:
        """Queue bytes for the rank's stdin; `last` closes it after them."""
        self._fed += data
        self._fed_last = self._fed_last or last

    def feed_rest(self) -> bool:
        """Write what the rank takes now; whether something still waits for it."""
        assert self._process.stdin is not None
        try:
            written = os.write(self._process.stdin.fileno(), self._fed) if self._fed else 0
            self._fed = self._fed[written:]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            self._fed, self._fed_last = b"", True  # it has closed its stdin, or is gone
        return bool(self._fed)

    def close_fed_stdin(self) -> None:
        """Close the rank's stdin, if its last bytes were fed."""
        if self._fed_last and self._process.stdin is not None:
            self._process.stdin.close()

    def reaped(self, returncode: int) -> None:
        self.returncode = self._process.returncode = returncode

    def signal(self, number: int) -> None:
        """Signal the rank's own process, unless it was reaped and its pid may be another's."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Signal the rank and what it started in its group, unless the rank was reaped."""
        if self.returncode is None:
            with contextlib.suppress(PermissionError):  # nothing there but another user's setuid program
                os.killpg(self.pid, number)

    def read(self, fd: int) -> bytes | None:
        """What the pipe holds now, at most 64 KiB; None at its end, b"" when it is empty."""
        try:
            return os.read(fd, _READ_BYTES) or None
        except BlockingIOError:
            return b""

    def close(self, fd: int) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed and pipe.fileno() == fd:
                pipe.close()
        del self.streams[fd]
