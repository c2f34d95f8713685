"""Several nodes on the loopback: they find each other, and one's end becomes everyone's."""

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from dslaunch.launcher.coordination.attendance import LinkSettings
from dslaunch.launcher.coordination.coordinator import Coordinator
from dslaunch.launcher.coordination.facts import fact
from dslaunch.launcher.coordination.link import (
    CoordinationError,
    Joined,
    Link,
    NodeEnd,
    PeerFailed,
    PeerLost,
    Settled,
    coordination,
)
from dslaunch.launcher.coordination.protocol import Cause

Settings = Callable[..., LinkSettings]
Meddle = Callable[[int, Callable[[bytes], bytes]], contextlib.AbstractAsyncContextManager[int]]
KEY = b"0123456789abcdef"
T = TypeVar("T")


def run(test: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(test, 30)

    return asyncio.run(bounded())


async def joined(settings: LinkSettings, log: Callable[[str], None] = lambda text: None) -> Joined:
    """Join and leave again when all have."""
    async with coordination(settings, log) as link:
        place = await link.join()
        link.report(NodeEnd(0))
        await link.verdict()
        return place


async def refusal(settings: LinkSettings) -> tuple[str, str]:
    """Why it could not join."""
    try:
        await joined(settings)
    except CoordinationError as error:
        return error.what, error.hint
    raise AssertionError("it joined")


@contextlib.asynccontextmanager
async def running(nodes: Sequence[LinkSettings]) -> AsyncIterator[list[Link]]:
    """All joined, in the order of their settings."""
    async with contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(coordination(node, lambda text: None)) for node in nodes]
        await asyncio.gather(*(link.join() for link in links))
        yield links


async def verdicts(links: Sequence[Link]) -> set[Settled]:
    return set(await asyncio.gather(*(link.verdict() for link in links)))


# -- joining


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_nodes_join_in_any_order(settings: Settings, order: tuple[int, ...]) -> None:
    async def test() -> list[Joined]:
        tasks = []
        for node_rank in order:
            tasks.append(asyncio.create_task(joined(settings(node_rank, key=KEY))))
            await asyncio.sleep(0.01)
        return await asyncio.gather(*tasks)

    assert run(test()) == [Joined(node_rank, "job of 0") for node_rank in order]


def test_nodes_without_a_rank_get_theirs_by_host_name(settings: Settings) -> None:
    async def test() -> list[Joined]:
        async with coordination(settings(None, 4, host="w-3", job_id="first"), lambda text: None) as first:
            others = [settings(None, 4, host="w-10"), settings(None, 4, host="w-2"), settings(2, 4)]
            tasks = [asyncio.create_task(joined(node)) for node in others]
            places = [await first.join()]
            first.report(NodeEnd(0))
            return places + await asyncio.gather(*tasks)

    assert run(test()) == [Joined(rank, "first") for rank in (0, 3, 1, 2)]


def test_any_host_name_can_be_told(settings: Settings) -> None:
    async def test() -> list[Joined]:
        return await asyncio.gather(*(joined(settings(i, 2, host=f"knöten {i}\n")) for i in range(2)))

    assert [place.node_rank for place in run(test())] == [0, 1]


def test_a_single_node_needs_nobody(settings: Settings) -> None:
    assert run(joined(settings(0, 1))) == Joined(0, "job of 0")


def test_ipv6(settings: Settings) -> None:
    async def test() -> list[Joined]:
        return await asyncio.gather(*(joined(settings(i, 2, master_addr="::1")) for i in range(2)))

    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    assert [place.node_rank for place in run(test())] == [0, 1]


def test_a_name_is_listened_for_everywhere(settings: Settings) -> None:
    async def test() -> list[Joined]:
        addresses = ("localhost", "127.0.0.1")
        return await asyncio.gather(*(joined(settings(i, 2, master_addr=a)) for i, a in enumerate(addresses)))

    assert [place.node_rank for place in run(test())] == [0, 1]


def test_the_log_tells_who_has_come(settings: Settings) -> None:
    log: list[str] = []

    async def test() -> None:
        await asyncio.gather(joined(settings(0, 2), log.append), joined(settings(1, 2)))

    run(test())
    assert log == ["pod-1 joined (2 of 2 nodes)"]


def test_a_doubled_rank_is_named_on_every_node(settings: Settings) -> None:
    async def test() -> list[tuple[str, str]]:
        hosts = {0: "pod-0", 1: "pod-a", 2: "pod-b"}
        nodes = [settings(min(i, 1), 3, host=host) for i, host in hosts.items()]
        return await asyncio.gather(*(refusal(node) for node in nodes))

    answers = set(run(test()))
    assert len(answers) == 1
    what, hint = answers.pop()
    assert what in (
        "--node_rank 1 was given on pod-a and on pod-b",
        "--node_rank 1 was given on pod-b and on pod-a",
    )
    assert hint == "give each of the 3 nodes its own: 0 to 2"


class Elsewhere(Coordinator):
    """Listens at another address of this machine than the one that nodes are told to call."""

    async def _listen(self, address: str | None) -> asyncio.Server:
        return await super()._listen("127.0.0.2")


def test_a_second_node_0_that_nobody_would_ever_call_finds_the_first(settings: Settings) -> None:
    async def test() -> list[tuple[str, str]]:
        async with coordination(settings(0, host="a"), lambda text: None) as first:
            second = Elsewhere(settings(0, host="b"), lambda text: None)
            await second.open()
            answers = await asyncio.gather(first.join(), second.join(), return_exceptions=True)
            await second.close()
            return [(error.what, error.hint) for error in answers if isinstance(error, CoordinationError)]

    expected = ("--node_rank 0 was given on a and on b", "give each of the 3 nodes its own: 0 to 2")
    assert run(test()) == [expected] * 2


def test_missing_nodes_are_named_at_the_deadline(settings: Settings) -> None:
    async def test() -> list[tuple[str, str]]:
        nodes = (settings(0, start_timeout_s=0.5), settings(2))
        return await asyncio.gather(*(refusal(node) for node in nodes))

    assert {what for what, _ in run(test())} == {"node 1 (node-1) did not join within 0.5 s"}


def test_node_0_that_never_comes_is_named(settings: Settings, port: int) -> None:
    what, hint = run(refusal(settings(1, start_timeout_s=0.3)))
    assert what == (f"node 0 does not answer at 127.0.0.1 port {port} within 0.3 s: Connection refused")
    assert hint == "see whether dslaunch runs there as node 0, or raise --start_timeout"


def test_differing_plans_are_named_on_every_node(settings: Settings) -> None:
    async def test() -> list[tuple[str, str]]:
        nodes = (settings(0), settings(1, facts=(fact("world size", "16"),)))
        return await asyncio.gather(*(refusal(node) for node in nodes))

    assert {what for what, _ in run(test())} == {
        "pod-0 and pod-1 were started differently: world size: '8' on pod-0, '16' on pod-1"
    }


def test_a_port_in_use_is_named(settings: Settings, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        assert run(refusal(settings(0))) == (
            f"the coordination port {port} is in use",
            "choose another with --coordination_port on every node, or end who holds it",
        )


def test_a_member_outlives_a_node_0_that_is_restarted(settings: Settings) -> None:
    async def test() -> Joined:
        waiting = asyncio.create_task(joined(settings(1, 2)))
        first = await asyncio.start_server(
            lambda reader, writer: writer.close(), "127.0.0.1", settings(0).port
        )
        await asyncio.sleep(0.1)
        first.close()
        await first.wait_closed()
        await joined(settings(0, 2))
        return await waiting

    assert run(test()) == Joined(1, "job of 0")


def test_node_0_that_is_interrupted_while_it_waits_says_so(settings: Settings) -> None:
    async def test() -> tuple[str, str]:
        waiting = asyncio.create_task(refusal(settings(1)))
        async with coordination(settings(0), lambda text: None) as link:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(link.join(), 0.3)
        return await waiting

    assert run(test()) == (
        "dslaunch on pod-0 (node 0) ended before every node had joined",
        "look there: pod-0",
    )


# -- ending


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_bad_end_is_carried_to_all(settings: Settings, culprit: int, key: bytes | None) -> None:
    lines = ("error: rank 5 on pod failed", "its last lines:", "    boom \udcff")
    cause = Cause(culprit, f"pod-{culprit}", 7, lost=False, lines=lines)

    async def test() -> None:
        async with running([settings(i, key=key) for i in range(3)]) as links:
            others = [link for i, link in enumerate(links) if i != culprit]
            links[culprit].report(NodeEnd(7, lines, time.time_ns()))
            assert await asyncio.gather(*(link.stopped() for link in others)) == [PeerFailed(cause)] * 2
            assert await verdicts(links) == {Settled(cause)}

    run(test())


def test_the_earlier_of_two_failures_is_the_cause_on_all(settings: Settings) -> None:
    async def test() -> set[Settled]:
        async with running([settings(i, settle_s=0.5) for i in range(3)]) as links:
            await asyncio.sleep(0.05)  # for the clocks
            now_ns = time.time_ns()
            links[0].report(NodeEnd(1, ("collateral",), now_ns - 5_000_000))
            await links[2].stopped()
            links[2].report(NodeEnd(9, ("the first",), now_ns - 25_000_000))
            return await verdicts(links)

    assert run(test()) == {Settled(Cause(2, "pod-2", 9, lost=False, lines=("the first",)))}


def test_the_job_ends_well_when_the_last_node_did(settings: Settings) -> None:
    async def test() -> set[Settled]:
        async with running([settings(i) for i in range(3)]) as links:
            for link in links[:2]:
                link.report(NodeEnd(0))
            waiting = [asyncio.create_task(link.verdict()) for link in links]
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in waiting)
            links[2].report(NodeEnd(0))
            return set(await asyncio.gather(*waiting))

    assert run(test()) == {Settled(None)}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_is_cut_off_is_lost_everywhere(settings: Settings, victim: int) -> None:
    async def test() -> None:
        async with running([settings(i) for i in range(3)]) as links:
            others = [link for i, link in enumerate(links) if i != victim]
            kill(links[victim])
            causes = {why.cause for why in await asyncio.gather(*(link.stopped() for link in others))}
            settled = await verdicts(others)
        (cause,) = causes
        assert settled == {Settled(cause)}
        assert cause.lost
        assert cause.exit_code == 111
        assert cause.lines[0].startswith(
            f"error: host pod-{victim} (node rank {victim}) was lost: the connection"
        )

    run(test())


def kill(link: object) -> None:
    """What the kernel does when a launcher dies: its sockets are reset."""
    call = getattr(link, "_call", None)
    if call is not None:
        call._transport.abort()
    else:
        for guest in link._reception._guests.values():  # type: ignore[attr-defined]
            guest._transport.abort()


@pytest.mark.parametrize("victim", [0, 1])
def test_silence_for_the_lease_is_a_loss(settings: Settings, meddle: Meddle, victim: int) -> None:
    """The connection stands, but nothing is carried any more. The victim itself is patient."""

    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            is_cut = False
            port = await stack.enter_async_context(
                meddle(settings(0).port, lambda line: b"" if is_cut else line)
            )
            lease_s = {0: 0.5, 1: 0.5, victim: 30.0}
            nodes = [settings(i, 2, heartbeat_s=0.1, lease_s=lease_s[i]) for i in range(2)]
            nodes[1] = replace(nodes[1], port=port)
            links = [await stack.enter_async_context(coordination(node, lambda text: None)) for node in nodes]
            await asyncio.gather(*(link.join() for link in links))
            is_cut = True
            began = time.monotonic()
            why = await links[1 - victim].stopped()
            assert 0.3 < time.monotonic() - began < 5
            assert isinstance(why, PeerLost)
            assert why.is_cut_off
            line = f"error: host pod-{victim} (node rank {victim}) was lost: no sign of life for 0.5 s"
            assert why.cause.lines == (line,)
            assert await links[1 - victim].verdict() == Settled(why.cause)

    run(test())


def test_a_launcher_that_breaks_off_takes_the_job_with_it(settings: Settings) -> None:
    async def test() -> list[str]:
        nodes = [settings(i, 2) for i in range(2)]
        async with running(nodes) as links:
            await links[1].close()  # type: ignore[attr-defined]
            return list((await links[0].verdict()).cause.lines)  # type: ignore[union-attr]

    assert run(test()) == ["error: host pod-1 (node rank 1) was lost: its launcher ended early"]


def test_last_words_arrive_though_node_0_leaves_at_once(settings: Settings) -> None:
    async def test() -> set[Settled]:
        async with contextlib.AsyncExitStack() as stack:
            nodes = [settings(i, heartbeat_s=0.001) for i in range(3)]
            async with coordination(nodes[0], lambda text: None) as node0:
                members = [
                    await stack.enter_async_context(coordination(node, lambda text: None))
                    for node in nodes[1:]
                ]
                await asyncio.gather(*(link.join() for link in (node0, *members)))
                for link in (node0, *members):
                    link.report(NodeEnd(0))
                await node0.verdict()
            return await verdicts(members)

    assert run(test()) == {Settled(None)}
