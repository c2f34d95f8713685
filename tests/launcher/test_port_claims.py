"""Jobs of one machine that start together meet at different ports."""

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from dslaunch.launcher.agent.port_claims import PortClaim, PortClaims


class Agent:
    """What a job's agent holds, and the loop that answers for it."""

    def __init__(self, port: int, job_id: str) -> None:
        self._selector = selectors.DefaultSelector()
        self.claims = PortClaims(port, job_id, self._selector)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.01):
                key.data()

    def stop(self) -> None:
        """It answers no more, but holds what it holds."""
        self._is_over = True
        self._thread.join()

    def close(self) -> None:
        self.stop()
        self.claims.settle(None)
        self._selector.close()


Agents = Callable[[int, str], Agent]


@pytest.fixture
def agents() -> Iterator[Agents]:
    with ExitStack() as stack:
        yield lambda port, job_id: stack.enter_context(closing(Agent(port, job_id)))


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def is_held(port: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(PortClaim.name(port))
        except OSError:
            return False
    return True


def test_the_second_job_does_not_get_the_port_but_another(agents: Agents) -> None:
    port = unused_port()
    first, second = agents(port, "a").claims, agents(port, "b").claims
    assert (first.has(port), second.has(port)) == (True, False)
    free = first.free_port(), second.free_port()
    assert free[0] != free[1]
    first.settle(port)
    second.settle(free[1])
    assert is_held(port)
    assert is_held(free[1])
    assert not is_held(free[0])
    with pytest.raises(OSError, match="another job"):
        second.settle(port)
    first.settle(None)
    second.settle(None)
    assert not is_held(port)


def test_a_port_that_someone_listens_at_is_not_held(agents: Agents) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert not agents(port, "a").claims.has(port)
    assert not is_held(port)


def test_an_agent_of_the_same_job_shares_the_port_and_keeps_it(agents: Agents) -> None:
    """Several on one machine, or one that comes with the plan after one that had none."""
    port = unused_port()
    first, second = agents(port, "a").claims, agents(port, "a").claims
    free = first.free_port()
    assert second.has(port)
    second.settle(free)
    first.settle(None)
    assert is_held(free)
    assert not is_held(port)
    assert not agents(free, "b").claims.has(free)


def test_who_holds_a_port_and_answers_nobody_keeps_it(agents: Agents) -> None:
    port = unused_port()
    first = agents(port, "a")
    first.stop()
    assert not agents(port, "a").claims.has(port)


def test_a_holder_that_lets_go_instead_of_answering_leaves_the_port() -> None:
    port = unused_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
        holder.bind(PortClaim.name(port))

        def let_go() -> None:
            holder.recv(1024)
            holder.close()

        leaving = threading.Thread(target=let_go)
        leaving.start()
        with closing(PortClaim(port, "a")):
            assert is_held(port)
        leaving.join()


def test_who_asked_while_the_port_was_let_go_has_it() -> None:
    port = unused_port()
    first = PortClaim(port, "a")
    with ExitStack() as stack:
        asking = threading.Thread(target=lambda: stack.enter_context(closing(PortClaim(port, "a"))))
        asking.start()
        first.close()
        asking.join()
        assert is_held(port)
