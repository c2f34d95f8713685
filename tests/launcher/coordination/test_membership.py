"""`step` over histories: who joins where, what is refused in which words, and one end for all."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.coordination.facts import Fact
from dslaunch.launcher.coordination.membership import step
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
    Rules,
    Send,
    Tick,
    assigned,
)

S = 1_000_000_000
HOST_NAMES = ("worker-0", "worker-1", "worker-2")
RULES = Rules(job_id="id", host_names=HOST_NAMES, start_timeout_ns=120 * S, lease_ns=15 * S, settle_ns=S // 4)
NONCE = "0" * 32
FACTS = (Fact("world size", "6"), Fact("script", "train.py"))


def hello(node_rank: int | None, host: str = "", facts: tuple[Fact, ...] = FACTS) -> Hello:
    return Hello(1, NONCE, host or f"worker-{node_rank}", node_rank, facts)


@dataclass
class History:
    """Feeds a room, keeps what it ordered. Time stands still unless it is moved."""

    room: Room = field(default_factory=lambda: Room(RULES, 0))
    outputs: list[Output] = field(default_factory=list)
    now_ns: int = 0

    def add(self, *inputs: Input) -> "History":
        for what in inputs:
            self.now_ns = max(self.now_ns, what.at_ns)
            self.room, outputs = step(self.room, what)
            self.outputs.extend(outputs)
        return self

    def arrive(self, peer: int, node_rank: int | None, host: str = "", **more: tuple[Fact, ...]) -> "History":
        return self.add(Arrived(peer, hello(node_rank, host, **more), self.now_ns))

    def own(self) -> "History":
        return self.arrive(OWN, 0)

    def begin(self) -> "History":
        return self.own().arrive(1, 1).arrive(2, 2)

    def end(self, peer: int, exit_code: int, at_ns: int | None = None, *lines: str) -> "History":
        return self.add(Heard(peer, Ended(exit_code, at_ns, lines), self.now_ns))

    def leave(self, peer: int, reason: str = "the connection was closed") -> "History":
        return self.add(Left(peer, reason, self.now_ns))

    def tick(self, at_ns: int) -> "History":
        return self.add(Tick(at_ns))

    def settle(self) -> "History":
        return self.tick(self.room.settle_by_ns)

    def told(self, peer: int) -> list[Down]:
        return [output.message for output in self.outputs if isinstance(output, Send) and output.peer == peer]

    @property
    def notes(self) -> list[str]:
        return [output.text for output in self.outputs if isinstance(output, Note)]


def failure(node_rank: int, exit_code: int, *lines: str) -> Cause:
    return Cause(node_rank, f"worker-{node_rank}", exit_code, lost=False, lines=lines)


def loss(node_rank: int, reason: str) -> Cause:
    line = f"error: host worker-{node_rank} (node rank {node_rank}) was lost: {reason}"
    return Cause(node_rank, f"worker-{node_rank}", 111, lost=True, lines=(line,))


# -- joining


def test_all_are_welcomed_and_begin_when_the_last_is_there() -> None:
    history = History().own().arrive(1, 2)
    assert history.told(OWN) == history.told(1) == [Welcome("id", "worker-0")]
    history.arrive(2, 1)
    assert [history.told(peer)[1:] for peer in (OWN, 1, 2)] == [[Begin(0)], [Begin(2)], [Begin(1)]]
    assert history.notes == ["worker-2 joined (2 of 3 nodes)", "worker-1 joined (3 of 3 nodes)"]
    assert history.room.phase is Phase.RUNNING


def test_a_single_node_begins_alone() -> None:
    history = History(Room(replace(RULES, host_names=("worker-0",)), 0)).own()
    assert history.told(OWN) == [Welcome("id", "worker-0"), Begin(0)]
    assert history.room.due_ns is None


@pytest.mark.parametrize(
    ("given_ranks", "expected"),
    [
        ({0: ("z", 0), 1: ("b", None), 2: ("a", None)}, {0: 0, 1: 2, 2: 1}),
        ({0: ("z", 0), 1: ("w-10", None), 2: ("w-9", None)}, {0: 0, 1: 2, 2: 1}),
        ({0: ("z", 0), 1: ("a", None), 2: ("b", 1), 3: ("c", None)}, {0: 0, 1: 2, 2: 1, 3: 3}),
        ({0: ("a", 0), 2: ("a", None), 1: ("a", None)}, {0: 0, 1: 1, 2: 2}),
    ],
    ids=["by name", "numbers as numbers", "some are given", "one name: as they came"],
)
def test_ranks_are_given_by_host_name(
    given_ranks: dict[int, tuple[str, int | None]], expected: dict[int, int]
) -> None:
    nodes = {peer: Node(hello(rank, host), rank, 0) for peer, (host, rank) in given_ranks.items()}
    assert assigned(nodes) == expected


@given(st.lists(st.sampled_from(["a", "b", "w-1", "w-2", "w-10"]), min_size=1, max_size=5), st.data())
def test_ranks_are_a_permutation_that_keeps_what_was_given(names: list[str], data: st.DataObject) -> None:
    places = data.draw(st.permutations(range(1, len(names) + 1)))
    ranks = [data.draw(st.sampled_from([None, place])) for place in places]
    nodes = {
        i + 1: Node(hello(rank, name), rank, 0)
        for i, (name, rank) in enumerate(zip(names, ranks, strict=True))
    }
    nodes[OWN] = Node(hello(0, "own"), 0, 0)
    result = assigned(nodes)
    assert sorted(result.values()) == list(range(len(nodes)))
    assert all(result[i + 1] == rank for i, rank in enumerate(ranks) if rank is not None)


def refused(history: History, *peers: int) -> Rejected:
    """What every one of them was told as the last, in the same words."""
    last = {history.told(peer)[-1] for peer in peers}
    assert len(last) == 1
    refusal = last.pop()
    assert isinstance(refusal, Rejected)
    assert [output.peer for output in history.outputs if isinstance(output, HangUp)] == [
        peer for peer in peers if peer != OWN
    ]
    return refusal


def test_a_doubled_node_rank_is_named_with_both_hosts_everywhere() -> None:
    history = History().own().arrive(1, 1, "pod-a").arrive(2, 1, "pod-b")
    assert refused(history, OWN, 1, 2) == Rejected(
        "--node_rank 1 was given on pod-a and on pod-b", "give each of the 3 nodes its own: 0 to 2"
    )


def test_a_second_node_0_is_refused_by_the_first() -> None:
    history = History().own().arrive(1, 0, "worker-0")
    assert refused(history, OWN, 1).what == "--node_rank 0 was given twice on worker-0"


def test_a_node_rank_beyond_the_job_is_refused() -> None:
    history = History().own().arrive(1, 3)
    assert refused(history, OWN, 1) == Rejected(
        "--node_rank 3 was given on worker-3, but the job has 3 nodes", "node ranks are 0 to 2"
    )


def test_differing_plans_are_named_field_by_field_everywhere() -> None:
    other = (Fact("world size", "8"), Fact("script", "train.py"), Fact("arguments", ""))
    history = History().own().arrive(1, 1).arrive(2, 2, facts=other)
    assert refused(history, OWN, 1, 2) == Rejected(
        "worker-0 and worker-2 were started differently: world size: '6' on worker-0, '8' on worker-2; "
        "arguments: nothing on worker-0, none on worker-2",
        "start every node with the same command, files and version; only --node_rank differs",
    )


def test_strangers_field_names_are_shown_without_control_characters() -> None:
    history = History().own().arrive(1, 1, facts=(*FACTS, Fact("\x1b[2J", "\x1b[2J")))
    assert refused(history, OWN, 1).what.isprintable()


def test_missing_nodes_are_named_at_the_start_deadline() -> None:
    history = History().own()
    assert history.room.due_ns == 120 * S
    history.tick(119 * S)
    assert history.told(OWN) == [Welcome("id", "worker-0")]
    history.add(Arrived(1, hello(1), 119 * S)).tick(120 * S)
    assert refused(history, OWN, 1) == Rejected(
        "node 2 (worker-2) did not join within 120 s",
        "see whether dslaunch runs there with this --master_addr and --master_port and can connect to the "
        "coordination port, or raise --start_timeout",
    )


def test_several_missing_nodes_and_missing_nodes_without_a_place() -> None:
    history = History().own().tick(120 * S)
    assert refused(history, OWN).what == "nodes 1 (worker-1), 2 (worker-2) did not join within 120 s"
    history = History().own().add(Arrived(1, hello(None, "pod"), 110 * S)).tick(120 * S)
    assert refused(history, OWN, 1).what == (
        "1 of 3 nodes did not join within 120 s; those that did: worker-0, pod"
    )


@pytest.mark.parametrize("goodbye", [True, False])
def test_who_leaves_before_the_job_began_may_come_again(goodbye: bool) -> None:
    history = History().own().arrive(1, 1)
    if goodbye:
        history.add(Heard(1, Goodbye("interrupted"), 0))
    else:
        history.leave(1, "interrupted")
    assert history.notes[-1] == "worker-1 left before the job began: interrupted"
    history.arrive(3, 1).arrive(4, 2)
    assert history.told(3)[-1] == Begin(1)
    assert history.told(1) == [Welcome("id", "worker-0")]


def test_silence_before_the_job_began_frees_the_place() -> None:
    history = History().own().arrive(1, 1).tick(15 * S)
    assert history.outputs[-1] == HangUp(1)
    assert 1 not in history.room.nodes


def test_who_comes_late_is_refused_and_changes_nothing() -> None:
    history = History().begin()
    before = history.room
    history.arrive(3, 1)
    assert history.told(3) == [
        Rejected(
            "the job of worker-0 already runs with all its nodes",
            "start all nodes of a job together, or use another --master_port for another job",
        )
    ]
    assert history.room == before
    for peer in (OWN, 1, 2):
        history.end(peer, 0)
    history.arrive(4, 1)
    assert history.told(4)[0].what == "the job of worker-0 has ended"  # type: ignore[union-attr]


def test_who_comes_after_a_refusal_is_told_its_reason() -> None:
    history = History().own().arrive(1, 3).arrive(2, 2)
    assert history.told(2) == history.told(1)[-1:]


def test_another_node_0_at_the_masters_address_ends_the_joining() -> None:
    refusal = Rejected("--node_rank 0 was given on a and on b", "x")
    history = History().own().arrive(1, 1).add(Disputed(refusal, 0))
    assert refused(history, OWN, 1) == refusal
    history = History().begin()
    assert step(history.room, Disputed(refusal, 0)) == (history.room, ())


def test_node_0_that_ends_before_the_job_began_says_so() -> None:
    history = History().own().arrive(1, 1).leave(OWN)
    assert refused(history, OWN, 1).what == "dslaunch on worker-0 (node 0) ended before every node had joined"


# -- running


def test_a_ping_is_answered_with_the_clock_and_renews_the_lease() -> None:
    history = History().begin().add(Heard(1, Ping(77), 14 * S))
    assert history.outputs[-1] == Send(1, Pong(77, 14 * S))
    assert history.room.due_ns == 15 * S
    history.tick(15 * S)
    assert history.told(1)[-1] == Stop(loss(2, "no sign of life for 15 s"))


def test_node_0_hears_nobody_only_where_all_others_are_silent() -> None:
    """What came from one shortly before counts as silence too: they do not beat at the same moment."""
    history = History().begin().add(Heard(1, Ping(0), 2 * S), Heard(2, Ping(0), 4 * S))
    assert history.tick(17 * S).room.is_silent(17 * S)
    history = History().begin().add(Heard(1, Ping(0), 2 * S), Heard(2, Ping(0), 16 * S))
    assert not history.tick(17 * S).room.is_silent(17 * S)


def test_the_job_ends_well_when_all_nodes_did() -> None:
    history = History().begin().end(OWN, 0).end(2, 0)
    assert history.told(OWN)[-1] == Begin(0)
    history.end(1, 0)
    for peer in (OWN, 1, 2):
        assert history.told(peer)[2:] == [Settled(None)]
    assert Settled(None).exit_code == 0


def test_a_bad_end_stops_all_others_at_once_and_is_everyones_verdict() -> None:
    cause = failure(1, 7, "error: rank 3 failed", "its last lines:", "    boom")
    history = History().begin().end(1, 7, None, *cause.lines)
    assert history.told(OWN)[2:] == history.told(2)[2:] == [Stop(cause)]
    assert history.room.due_ns == S // 4
    history.settle()
    assert history.told(OWN)[2:] == history.told(2)[2:] == [Stop(cause), Settled(cause)]
    assert history.told(1)[2:] == [Settled(cause)]
    assert history.room.due_ns is None


def test_the_earlier_failure_is_the_cause_though_it_was_told_later() -> None:
    history = History().begin().tick(S).end(OWN, 1, S - 5_000_000, "reset").end(2, 7, S - 25_000_000, "boom")
    assert history.told(1)[2:] == [Stop(failure(0, 1, "reset"))]
    history.settle()
    assert {history.told(peer)[-1] for peer in (OWN, 1, 2)} == {Settled(failure(2, 7, "boom"))}
    assert history.told(2)[2:] == [Stop(failure(0, 1, "reset")), Settled(failure(2, 7, "boom"))]


def test_a_failure_cannot_be_later_than_its_news() -> None:
    history = History().begin().tick(S).end(1, 1, 9 * S).add(Heard(2, Ended(2, None, ()), S + 1)).settle()
    assert history.told(OWN)[-1] == Settled(failure(1, 1))


def test_when_all_have_ended_nothing_is_waited_for() -> None:
    history = History().begin().end(OWN, 0).end(1, 0).end(2, 3)
    assert history.told(OWN)[-1] == Settled(failure(2, 3))


def test_a_good_end_may_turn_bad_and_the_first_bad_one_stays() -> None:
    history = History().begin().end(1, 0).end(1, 130).end(1, 9).settle()
    assert history.told(OWN)[-1] == Settled(failure(1, 130))


@pytest.mark.parametrize("reason", ["the connection was lost: reset", "its launcher ended early"])
def test_a_node_that_goes_before_its_end_is_lost(reason: str) -> None:
    history = History().begin()
    if "launcher" in reason:
        history.add(Heard(2, Goodbye(reason), 0))
    else:
        history.leave(2, reason)
    history.settle()
    assert history.told(1)[2:] == [Stop(loss(2, reason)), Settled(loss(2, reason))]
    assert history.told(2)[2:] == []


def test_a_lost_node_is_the_cause_of_what_broke_since_it_was_last_heard() -> None:
    history = History().begin().tick(S).end(1, 1, S, "connection reset by peer").leave(2).settle()
    assert history.told(OWN)[-1] == Settled(loss(2, "the connection was closed"))


def test_a_node_that_ended_may_go() -> None:
    history = History().begin().end(1, 0).leave(1).end(2, 0).leave(2)
    assert history.told(OWN)[-1] == Begin(0)
    history.end(OWN, 0)
    assert history.told(OWN)[-1] == Settled(None)
    assert history.told(1)[-1] == Begin(1)


def test_a_node_that_was_told_to_stop_may_say_goodbye() -> None:
    history = History().begin().tick(S).end(1, 7, S).add(Heard(2, Goodbye("interrupted"), S)).settle()
    assert history.told(OWN)[-1] == Settled(failure(1, 7))


def test_node_0_that_leaves_ends_the_job_at_once() -> None:
    history = History().begin().leave(OWN, "its launcher ended early")
    cause = loss(0, "its launcher ended early")
    assert history.told(1)[2:] == [Stop(cause), Settled(cause)]
    history = History().begin().end(1, 7).leave(OWN)
    assert history.told(2)[2:] == [Stop(failure(1, 7)), Settled(failure(1, 7))]


# -- every history

peers = st.sampled_from((1, 2, 3))
times = st.integers(0, 40 * S)
messages = st.one_of(
    st.builds(Ended, st.sampled_from((0, 0, 1, 130)), st.none() | times, st.just(())),
    st.builds(Ping, times),
    st.just(Goodbye("bye")),
)
steps = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from((None, 1, 2, 1, 2, 5)), st.booleans()),
    st.tuples(st.just("hear"), st.sampled_from((OWN, 1, 2, 3)), messages),
    st.tuples(st.just("leave"), peers),
    st.tuples(st.just("pass"), st.integers(0, 20 * S)),
    st.tuples(st.just("dispute")),
)


def replay(history: History, plan: list[tuple]) -> None:  # type: ignore[type-arg]
    """Peers get a number of their own each time they come, as connections do."""
    num_peers = max(history.room.nodes)
    for what in plan:
        now = history.now_ns
        match what:
            case ("arrive", node_rank, same):
                num_peers += 1
                facts = FACTS if same or node_rank != 5 else ()
                history.add(Arrived(num_peers, hello(node_rank, f"pod-{num_peers}", facts), now))
            case ("hear", peer, message) if not (peer == OWN and isinstance(message, Goodbye)):
                history.add(Heard(peer, message, now))
            case ("leave", peer):
                history.add(Left(peer, "gone", now))
            case ("pass", delay):
                history.add(Tick(now + delay))
            case ("dispute",):
                history.add(Disputed(Rejected("two", "x"), now))
            case _:
                pass


@given(st.booleans(), st.lists(steps, max_size=30))
def test_everyone_gets_one_last_word_and_all_get_the_same(begun: bool, plan: list[tuple]) -> None:  # type: ignore[type-arg]
    history = History().begin() if begun else History().own()
    replay(history, plan)
    history.add(Left(OWN, "its launcher ended early", history.now_ns))
    assert history.room.phase is Phase.OVER
    assert history.room.due_ns is None
    last_words = set()
    for peer, node in history.room.nodes.items():
        told = [message for message in history.told(peer) if not isinstance(message, Pong)]
        last = [message for message in told if isinstance(message, Rejected | Settled)]
        assert len(last) <= 1
        assert last == told[len(told) - len(last) :]
        assert sum(isinstance(message, Begin) for message in told) <= 1
        assert sum(isinstance(message, Stop) for message in told) <= 1
        assert last or not node.is_here or peer == OWN
        last_words.update(last)
    assert len(last_words) == 1
    settled = next(iter(last_words))
    if isinstance(settled, Settled):
        good = [node for node in history.room.nodes.values() if node.is_done and node.cause is None]
        assert (settled.exit_code == 0) == (len(good) == len(HOST_NAMES))
        assert settled.cause is None or settled.cause in [node.cause for node in history.room.nodes.values()]
    begun_ranks = [
        output.message.node_rank
        for output in history.outputs
        if isinstance(output, Send) and isinstance(output.message, Begin)
    ]
    assert begun_ranks == [] or sorted(begun_ranks) == [0, 1, 2]


@given(st.lists(steps, max_size=20), st.lists(steps, max_size=20))
def test_nothing_changes_an_end(plan: list[tuple], more: list[tuple]) -> None:  # type: ignore[type-arg]
    history = History().begin()
    replay(history, plan)
    history.add(Left(OWN, "its launcher ended early", history.now_ns))
    num_outputs = len(history.outputs)
    replay(history, more)
    assert history.room.phase is Phase.OVER
    for output in history.outputs[num_outputs:]:
        match output:
            case Send(peer, Settled() | Begin() | Stop() | Welcome()):
                raise AssertionError(f"{output} to {peer} after the end")
            case _:
                pass


@given(st.lists(steps, max_size=30))
def test_whatever_is_due_gets_done_by_ticks_alone(plan: list[tuple]) -> None:  # type: ignore[type-arg]
    history = History().own()
    replay(history, plan)
    for _ in range(20):
        if (due_ns := history.room.due_ns) is None:
            break
        before = history.room
        history.tick(max(due_ns, history.now_ns))
        assert history.room != before
    assert history.room.phase is Phase.OVER or (
        history.room.phase is Phase.RUNNING and not history.room.nodes[OWN].is_done
    )
