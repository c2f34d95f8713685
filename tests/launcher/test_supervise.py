"""`step` over histories: no process, every order."""

import signal
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher import wire
from dslaunch.launcher.supervise import (
    Action,
    AgentClosed,
    Begin,
    Deadline,
    Finish,
    FromAgent,
    Input,
    Job,
    Signal,
    Stop,
    step,
)
from dslaunch.launcher.verdict import (
    Interrupted,
    LaunchFailed,
    NodeLost,
    PeerEnded,
    Preempted,
    RankEnd,
    RankFailed,
    Verdict,
    grace_after,
)

RANKS = {0: (0, 1), 1: (2, 3)}
READY = wire.Ready("host", 1, "3.11", ("10.0.0.1",), ("eth0",), False, 1, 2)


@dataclass
class History:
    """Feeds a job and keeps what it ordered."""

    job: Job = field(default_factory=lambda: Job(RANKS))
    actions: list[Action] = field(default_factory=list)

    def add(self, *inputs: Input) -> "History":
        for what in inputs:
            self.job, actions = step(self.job, what)
            self.actions.extend(actions)
        return self

    def begin(self) -> "History":
        return self.add(FromAgent(0, READY), FromAgent(1, READY))

    @property
    def verdict(self) -> Verdict:
        last = self.actions[-1]
        assert isinstance(last, Finish)
        return last.verdict


def exited(rank: int, returncode: int, time_ns: int = 5) -> FromAgent:
    return FromAgent(rank // 2, wire.Exited(rank, returncode, time_ns, ""))


def closed(node_rank: int, reason: str = "its agent exited with code 0", heard_ns: int = 0) -> AgentClosed:
    return AgentClosed(node_rank, reason, "", heard_ns)


def test_a_good_job_begins_when_all_are_ready_and_finishes_with_0() -> None:
    history = History().add(FromAgent(1, READY))
    assert history.actions == []
    history.add(
        FromAgent(0, READY), exited(0, 0), exited(1, 0), closed(0), exited(2, 0), exited(3, 0), closed(1)
    )
    assert history.actions == [Begin(), Finish(Verdict(None, (), ()))]
    assert history.verdict.exit_code == 0


def test_the_first_rank_that_fails_is_the_cause_and_the_rest_collateral() -> None:
    history = (
        History()
        .begin()
        .add(exited(2, 7), exited(0, -15), exited(1, -15), closed(0), exited(3, -9), closed(1))
    )
    cause = RankFailed(RankEnd(1, 2, 7, 5, ""))
    assert history.actions[1] == Stop(cause, signal.SIGTERM)
    assert history.verdict.cause == cause
    assert [end.rank for end in history.verdict.collateral] == [0, 1, 3]
    assert history.verdict.exit_code == 7


def test_the_rank_that_ended_first_is_the_cause_though_it_was_heard_second() -> None:
    history = (
        History().begin().add(exited(0, 1, 1_020), exited(2, 7, 1_000), exited(1, -15, 1_100), closed(0))
    )
    history.add(exited(3, -15, 1_101), closed(1))
    assert history.verdict.cause == RankFailed(RankEnd(1, 2, 7, 1_000, ""))
    assert [end.rank for end in history.verdict.collateral] == [0, 1, 3]
    assert history.verdict.exit_code == 7


def test_a_signal_becomes_128_plus_n() -> None:
    history = (
        History().begin().add(exited(0, -11), exited(1, 0), closed(0), exited(2, 0), exited(3, 0), closed(1))
    )
    assert history.verdict.exit_code == 139


def test_an_agent_that_vanishes_is_a_lost_node() -> None:
    history = (
        History().begin().add(closed(1, "the connection was lost"), exited(0, -15), exited(1, -15), closed(0))
    )
    assert history.verdict.cause == NodeLost(1, "the connection was lost")
    assert history.verdict.exit_code == 111


def test_a_host_that_cannot_be_reached_fails_the_launch() -> None:
    history = History().add(FromAgent(0, READY), AgentClosed(1, "cannot resolve", "check it"), closed(0))
    assert history.actions[0] == Stop(LaunchFailed(1, "cannot resolve", "check it"), signal.SIGTERM)
    assert history.verdict.exit_code == 110


def test_a_refused_plan_fails_the_launch() -> None:
    history = (
        History().begin().add(FromAgent(1, wire.Refused("no folder /x", "create it")), closed(0), closed(1))
    )
    assert history.verdict.cause == LaunchFailed(1, "no folder /x", "create it")


def test_the_start_deadline_names_who_is_late() -> None:
    history = History().add(FromAgent(0, READY), Deadline.START, closed(0), closed(1))
    assert isinstance(history.verdict.cause, LaunchFailed)
    assert history.verdict.cause.node_rank == 1


def test_ctrl_c_asks_then_kills_then_leaves() -> None:
    history = History().begin().add(*[Interrupted(signal.SIGINT)] * 3)
    assert history.actions[1:3] == [Stop(Interrupted(signal.SIGINT), signal.SIGINT), Signal(signal.SIGKILL)]
    assert history.verdict.silent_nodes == (0, 1)
    assert history.verdict.exit_code == 130


def test_sigterm_and_sighup_ask_ranks_with_sigterm() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        history = History().begin().add(Interrupted(number))
        assert history.actions[-1] == Stop(Interrupted(number), signal.SIGTERM)


def test_a_node_that_is_told_to_end_is_preempted() -> None:
    told = FromAgent(1, wire.Preempted(signal.SIGTERM))
    history = History().begin().add(told, exited(2, -15), exited(3, 0), closed(1), exited(0, 0), exited(1, 0))
    history.add(closed(0))
    assert history.actions[1] == Stop(Preempted(1, signal.SIGTERM), signal.SIGTERM)
    assert history.verdict.cause == Preempted(1, signal.SIGTERM)
    assert history.verdict.exit_code == 114


def test_ranks_that_a_batch_system_ends_before_their_agent_were_preempted_too() -> None:
    history = History().begin().add(exited(2, -15, 5), FromAgent(1, wire.Preempted(signal.SIGTERM)))
    history.add(exited(3, -15, 6), closed(1), exited(0, -15, 9), exited(1, -15, 9), closed(0))
    assert history.verdict.cause == Preempted(1, signal.SIGTERM)


def test_an_agent_that_we_have_told_to_end_is_not_preempted() -> None:
    history = History().begin().add(exited(0, 3), FromAgent(1, wire.Preempted(signal.SIGTERM)))
    history.add(exited(1, -15, 7), closed(0), exited(2, -15, 7), exited(3, -15, 7), closed(1))
    assert isinstance(history.verdict.cause, RankFailed)
    assert history.verdict.exit_code == 3


def test_notices_pass_and_change_nothing() -> None:
    history = History().begin()
    before = history.job
    history.add(Interrupted(signal.SIGUSR1))
    assert history.actions[1:] == [Signal(signal.SIGUSR1)]
    assert history.job == before


def test_nodes_with_processes_that_cannot_be_ended_are_told() -> None:
    goodbye = FromAgent(1, wire.Goodbye(("77 (D)",), ""))
    history = History().begin().add(exited(2, 3), exited(3, 0), goodbye, closed(1), exited(0, -15))
    history.add(exited(1, -15), closed(0))
    assert history.verdict.stuck_nodes == (1,)


def test_agents_that_never_say_goodbye_are_named() -> None:
    history = History().begin().add(exited(0, 3), closed(0), Deadline.STOP)
    assert history.verdict.silent_nodes == (1,)
    assert history.verdict.exit_code == 3


inputs = st.one_of(
    st.builds(FromAgent, st.sampled_from((0, 1)), st.just(READY)),
    st.builds(FromAgent, st.sampled_from((0, 1)), st.just(wire.Refused("no", "yes"))),
    st.builds(exited, st.sampled_from((0, 1, 2, 3)), st.sampled_from((0, 0, 1, -9))),
    st.builds(Interrupted, st.sampled_from((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))),
    st.sampled_from((Deadline.START, Deadline.STOP)),
    st.builds(FromAgent, st.sampled_from((0, 1)), st.just(wire.Heartbeat(1, 0))),
)


@given(st.lists(inputs, max_size=20), st.permutations((0, 1)))
def test_one_finish_that_is_last_and_at_most_one_stop(history: list[Input], order: list[int]) -> None:
    first, second = order
    middle = len(history) // 2
    run = History().add(*history[:middle], closed(first), *history[middle:], closed(second))
    run.add(*history, Deadline.STOP)
    assert [action for action in run.actions if isinstance(action, Finish)] == run.actions[-1:]
    assert sum(isinstance(action, Stop) for action in run.actions) <= 1
    assert sum(isinstance(action, Begin) for action in run.actions) <= 1
    stops = [action for action in run.actions if isinstance(action, Stop)]
    if not isinstance(run.verdict.cause, RankFailed | NodeLost):
        assert run.verdict.cause == (stops[0].cause if stops else None)
    failed = [end for end in run.job.ends.values() if end.returncode != 0]
    assert (run.verdict.exit_code == 0) <= (not failed)


@given(st.permutations(range(4)), st.lists(st.sampled_from((0, 1, -9)), min_size=4, max_size=4), st.data())
def test_the_order_of_arrival_does_not_change_the_cause(
    times: list[int], codes: list[int], data: st.DataObject
) -> None:
    ends = [exited(rank, codes[rank], 10 + times[rank]) for rank in range(4)]
    arrived = data.draw(st.permutations(ends))
    run = History().begin().add(*arrived, closed(0), closed(1))
    failed = [(times[rank], rank) for rank in range(4) if codes[rank]]
    if not failed:
        assert run.verdict.cause is None
        return
    assert isinstance(run.verdict.cause, RankFailed)
    assert run.verdict.cause.end.rank == min(failed)[1]
    assert {end.rank for end in run.verdict.collateral} == {rank for _, rank in failed} - {min(failed)[1]}


@given(st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_of_a_rank_and_a_lost_node_the_earlier_is_the_cause(
    failed_ns: int, heard_ns: int, is_heard_first: bool
) -> None:
    inputs = [exited(0, 1, failed_ns), closed(1, "gone", heard_ns)]
    run = History().begin().add(*(inputs if is_heard_first else inputs[::-1]), exited(1, -15, 30), closed(0))
    expected = NodeLost if heard_ns < failed_ns else RankFailed
    assert isinstance(run.verdict.cause, expected)
    assert run.verdict.exit_code == (111 if heard_ns < failed_ns else 1)


@given(st.lists(inputs, max_size=20), st.lists(inputs, max_size=10))
def test_what_is_known_stays_known_and_nothing_follows_a_finish(
    before: list[Input], after: list[Input]
) -> None:
    run = History().add(*before)
    known, num_actions, was_finished = dict(run.job.ends), len(run.actions), run.job.finished
    run.add(*after)
    assert {rank: run.job.ends[rank] for rank in known} == known
    assert not was_finished or len(run.actions) == num_actions


def test_only_a_host_that_is_cut_off_cuts_the_grace_short() -> None:
    lost = PeerEnded(111, ("host a was lost",))
    assert grace_after(lost, 30, 15) == 30
    assert grace_after(NodeLost(1, "gone"), 30, 15) == 30
    cut_off = PeerEnded(111, ("host a was lost",), is_cut_off=True)
    assert grace_after(cut_off, 30, 15) == 2.5
    assert grace_after(cut_off, 1, 15) == 1
