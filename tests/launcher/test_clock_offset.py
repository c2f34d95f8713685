"""Clocks that are apart, over ways of any length."""

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.clock_offset import ClockOffset

MS = 1_000_000
ways = st.lists(st.tuples(st.integers(0, 500 * MS), st.integers(0, 500 * MS)), min_size=1, max_size=8)


@given(st.integers(-(10**15), 10**15), ways)
def test_the_error_is_at_most_half_of_the_shortest_way(apart_ns: int, ways: list[tuple[int, int]]) -> None:
    offset, now_ns = ClockOffset(), 10**18
    for down_ns, up_ns in ways:
        arrived_ns = now_ns + down_ns
        offset = offset.heard(echo_ns=now_ns, sent_ns=arrived_ns - apart_ns, now_ns=arrived_ns + up_ns)
        now_ns = arrived_ns + up_ns + MS
    assert abs(offset.to_launcher_ns(0) - apart_ns) <= min(sum(way) for way in ways) // 2 + 1


@given(st.integers(-(10**15), 10**15), st.lists(st.integers(0, 500 * MS), min_size=1, max_size=8))
def test_without_answers_the_error_is_the_shortest_way_up(apart_ns: int, ways: list[int]) -> None:
    offset, now_ns = ClockOffset(), 10**18
    for up_ns in ways:
        offset = offset.heard(echo_ns=0, sent_ns=now_ns - apart_ns, now_ns=now_ns + up_ns)
        now_ns += 10**9
    assert offset.to_launcher_ns(0) - apart_ns == min(ways)


def test_an_answer_beats_what_was_not_answered() -> None:
    offset = ClockOffset().heard(echo_ns=0, sent_ns=100, now_ns=900)
    answered = offset.heard(echo_ns=1000, sent_ns=300, now_ns=1200)
    assert answered.offset_ns == 800
    assert answered.heard(echo_ns=0, sent_ns=100, now_ns=200) == answered
