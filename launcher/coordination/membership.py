"""Who belongs to the job, and how it ends: `step(room, input)` returns the next room and what to do.

Pure. The launcher of node 0 keeps it; its own node is the peer OWN, served like all others. Whatever order
peers come, speak and go in, every one of them gets at most one Begin, at most one Stop, and as its last word
exactly one of Rejected and Settled, unless it is gone before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dslaunch.launcher.coordination import refusals
from dslaunch.launcher.coordination.facts import differences
from dslaunch.launcher.coordination.protocol import (
    Begin,
    Cause,
    Down,
    Ended,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Rejected,
    Settled,
    Stop,
    Welcome,
    printable,
)
from dslaunch.launcher.coordination.room import (
    OWN,
    Arrived,
    Disputed,
    HangUp,
    Heard,
    Input,
    Left,
    Node,
    Note,
    Output,
    Phase,
    Room,
    Send,
    Tick,
    assigned,
)
from dslaunch.launcher.errors import EXIT_NODE_LOST

Step = tuple[Room, tuple[Output, ...]]


def step(room: Room, what: Input) -> Step:
    """The room after `what`, and what to do about it now, in order."""
    match what:
        case Arrived(peer):
            return _over(room, peer) if room.phase is not Phase.JOINING else _arrived(room, what)
        case Heard(peer, message, at_ns) if peer in room.nodes and room.nodes[peer].is_here:
            return _heard(_with(room, peer, heard_ns=at_ns), peer, message, at_ns)
        case Left(peer, reason, at_ns) if peer in room.nodes and room.nodes[peer].is_here:
            return _left(room, peer, reason, at_ns)
        case Tick(at_ns):
            return _passed(room, at_ns)
        case Disputed(refusal) if room.phase is Phase.JOINING:
            return _fail(room, refusal)
        case _:
            return room, ()


def _with(room: Room, peer: int, **changes: object) -> Room:
    node = replace(room.nodes[peer], **changes)  # type: ignore[arg-type]
    return replace(room, nodes={**room.nodes, peer: node})


# -- joining


def _over(room: Room, peer: int) -> Step:
    is_over = room.phase is Phase.OVER
    refusal = room.refusal or refusals.too_late(room.nodes[OWN].host, is_over=is_over)
    return room, (Send(peer, refusal), HangUp(peer))


def _arrived(room: Room, what: Arrived) -> Step:
    peer, hello = what.peer, what.hello
    node_rank = 0 if peer == OWN else hello.node_rank
    refusal = _refusal(room, peer, hello)
    room = replace(room, nodes={**room.nodes, peer: Node(hello, node_rank, what.at_ns)})
    if refusal is not None:
        return _fail(room, refusal)
    own = room.nodes[OWN].host
    num_nodes = len(room.rules.host_names)
    outputs: tuple[Output, ...] = (Send(peer, Welcome(room.rules.job_id, own)),)
    if peer != OWN:
        outputs += (Note(f"{hello.host} joined ({len(room.nodes)} of {num_nodes} nodes)"),)
    if len(room.nodes) < num_nodes:
        return room, outputs
    ranks = assigned(room.nodes)
    nodes = {peer: replace(node, node_rank=ranks[peer]) for peer, node in room.nodes.items()}
    room = replace(room, nodes=nodes, phase=Phase.RUNNING)
    return room, outputs + tuple(Send(peer, Begin(rank)) for peer, rank in ranks.items())


def _refusal(room: Room, peer: int, hello: Hello) -> Rejected | None:
    if peer == OWN:
        return None
    own, num_nodes, node_rank = room.nodes[OWN].hello, len(room.rules.host_names), hello.node_rank
    found = differences(own.facts, hello.facts)
    if found:
        return refusals.differing(own.host, hello.host, found)
    if node_rank is None:
        return None
    if not 0 <= node_rank < num_nodes:
        return refusals.out_of_range(node_rank, hello.host, num_nodes)
    for node in room.nodes.values():
        if node.node_rank == node_rank:
            return refusals.doubled(node_rank, node.host, hello.host, num_nodes)
    return None


def _fail(room: Room, refusal: Rejected) -> Step:
    room = replace(room, phase=Phase.OVER, refusal=refusal)
    return room, (*_to_all(room, refusal), *(HangUp(peer) for peer in _here(room) if peer != OWN))


def _here(room: Room) -> Iterator[int]:
    return (peer for peer, node in room.nodes.items() if node.is_here)


def _to_all(room: Room, message: Down, but: Iterable[int] = ()) -> tuple[Output, ...]:
    return tuple(Send(peer, message) for peer in _here(room) if peer not in but)


# -- running


def _heard(room: Room, peer: int, message: Ended | Ping | Goodbye, at_ns: int) -> Step:
    match message:
        case Ping(sent_ns):
            return room, (Send(peer, Pong(sent_ns, at_ns)),)
        case Goodbye(reason):
            if room.phase is Phase.STOPPING:  # as it was told to
                room = _with(room, peer, is_done=True)
            room, outputs = _left(room, peer, printable(reason), at_ns)
            return room, (*outputs, HangUp(peer))
        case Ended():
            return _ended(room, peer, message, at_ns)


def _ended(room: Room, peer: int, end: Ended, at_ns: int) -> Step:
    node = room.nodes[peer]
    if room.phase not in (Phase.RUNNING, Phase.STOPPING) or node.cause is not None:
        return room, ()
    if end.exit_code == 0:
        return _settled_if_done(_with(room, peer, is_done=True))
    assert node.node_rank is not None
    cause = Cause(node.node_rank, node.host, end.exit_code, lost=False, lines=end.lines)
    failed_ns = at_ns if end.at_ns is None else min(end.at_ns, at_ns)
    return _failed(room, peer, cause, failed_ns, at_ns)


def _left(room: Room, peer: int, reason: str, at_ns: int) -> Step:
    node = room.nodes[peer]
    if peer == OWN:
        return _abandoned(room, reason, at_ns)
    if room.phase is Phase.JOINING:
        nodes = {other: node for other, node in room.nodes.items() if other != peer}
        return replace(room, nodes=nodes), (Note(f"{node.host} left before the job began: {reason}"),)
    room = _with(room, peer, is_here=False)
    if room.phase is Phase.OVER or node.is_done:
        return room, ()
    return _failed(room, peer, _loss(node, reason), node.heard_ns, at_ns)


def _loss(node: Node, reason: str) -> Cause:
    assert node.node_rank is not None
    line = f"error: host {node.host} (node rank {node.node_rank}) was lost: {reason}"
    return Cause(node.node_rank, node.host, EXIT_NODE_LOST, lost=True, lines=(line,))


def _failed(room: Room, peer: int, cause: Cause, failed_ns: int, at_ns: int) -> Step:
    """A lost node failed when it was last heard: what broke elsewhere since then may be due to it."""
    outputs: tuple[Output, ...] = ()
    if room.phase is Phase.RUNNING:
        room = replace(room, phase=Phase.STOPPING, settle_by_ns=at_ns + room.rules.settle_ns)
        outputs = _to_all(room, Stop(cause), but=(peer,))
    room = _with(room, peer, is_done=True, cause=cause, failed_ns=failed_ns)
    room, last = _settled_if_done(room)
    return room, outputs + last


def _settled_if_done(room: Room) -> Step:
    return _settle(room) if all(node.is_done for node in room.nodes.values()) else (room, ())


def _settle(room: Room) -> Step:
    failed = [node for node in room.nodes.values() if node.cause is not None]
    first = min(failed, key=lambda node: (node.failed_ns, node.node_rank), default=None)
    room = replace(room, phase=Phase.OVER)
    return room, _to_all(room, Settled(None if first is None else first.cause))


def _abandoned(room: Room, reason: str, at_ns: int) -> Step:
    """Node 0's own launcher ends: nobody will settle anything later."""
    node = room.nodes[OWN]
    match room.phase:
        case Phase.JOINING:
            return _fail(room, refusals.left_early(node.host))
        case Phase.OVER:
            return _with(room, OWN, is_here=False), ()
    outputs: tuple[Output, ...] = ()
    if room.phase is Phase.RUNNING:
        room, outputs = _failed(room, OWN, _loss(node, reason), at_ns, at_ns)
    if room.phase is Phase.STOPPING:
        room, last = _settle(room)
        outputs += last
    return room, outputs


# -- time


def _passed(room: Room, at_ns: int) -> Step:
    outputs: tuple[Output, ...] = ()
    for peer in list(_here(room)):
        if peer != OWN and room.nodes[peer].heard_ns + room.rules.lease_ns <= at_ns:
            reason = f"no sign of life for {room.rules.lease_ns / 1e9:g} s"
            room, more = _left(room, peer, reason, at_ns)
            outputs += (*more, HangUp(peer))
    if room.phase is Phase.JOINING and room.started_ns + room.rules.start_timeout_ns <= at_ns:
        room, more = _fail(room, _missing(room))
        outputs += more
    if room.phase is Phase.STOPPING and room.settle_by_ns <= at_ns:
        room, more = _settle(room)
        outputs += more
    return room, outputs


def _missing(room: Room) -> Rejected:
    there = {node.node_rank: node.host for node in room.nodes.values() if node.node_rank is not None}
    unplaced = [node.host for node in room.nodes.values() if node.node_rank is None]
    return refusals.missing(there, unplaced, room.rules.host_names, room.rules.start_timeout_ns / 1e9)
