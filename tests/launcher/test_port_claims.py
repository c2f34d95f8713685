"""Jobs of one machine that start together meet at different ports."""

import socket

import pytest

from dslaunch.launcher.agent.facts import PortClaim, PortClaims, gather


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def test_the_second_job_is_told_that_the_port_is_in_use_and_gets_another() -> None:
    port = unused_port()
    first, second = PortClaims(port, is_fixed=False), PortClaims(port, is_fixed=False)
    told = [gather(port, 1, claims) for claims in (first, second)]
    assert [ready.port_in_use for ready in told] == [False, True]
    assert told[0].free_port != told[1].free_port
    first.settle(port)
    second.settle(told[1].free_port)
    assert PortClaim.exists(port)
    assert PortClaim.exists(told[1].free_port)
    assert not PortClaim.exists(told[0].free_port)
    first.settle(None)
    second.settle(None)
    assert not PortClaim.exists(port)


def test_a_fixed_port_is_taken_by_whose_job_meets_there_first() -> None:
    port = unused_port()
    first, second = PortClaims(port, is_fixed=True), PortClaims(port, is_fixed=True)
    assert not any(gather(port, 1, claims).port_in_use for claims in (first, second))
    second.settle(port)
    with pytest.raises(OSError, match="in use"):
        first.settle(port)
    second.settle(None)
    first.settle(port)
    first.settle(None)
