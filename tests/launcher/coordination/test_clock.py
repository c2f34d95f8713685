"""The offset between two clocks is wrong by half a round trip at most."""

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.coordination.clock import ClockOffset


def test_before_the_first_round_trip_nothing_is_known() -> None:
    assert ClockOffset().offset_ns is None


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20),
)
def test_the_quickest_of_the_last_round_trips_bounds_the_error(
    offset: int, delays: list[tuple[int, int]]
) -> None:
    clock = ClockOffset()
    now = 0
    for there, back in delays:
        clock.measured(now, now + there + offset, now + there + back)
        now += there + back
    assert clock.offset_ns is not None
    quickest = min(there + back for there, back in delays[-8:])
    assert abs(clock.offset_ns - offset) <= quickest / 2 + 1
