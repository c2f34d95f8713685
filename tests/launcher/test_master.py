"""Where ranks meet, by what the hosts answered."""

import pytest

from dslaunch.hostfile import Host, Topology
from dslaunch.launcher.environment import Forwarded
from dslaunch.launcher.master import MasterError, assumed_master, settled_master
from dslaunch.launcher.plan import Master, Resolved
from dslaunch.launcher.request import LaunchRequest
from dslaunch.launcher.wire import Ready


def resolved(num_nodes: int, own_node: int | None = None, **flags: object) -> Resolved:
    return Resolved(
        request=LaunchRequest(script="x.py", **flags),  # type: ignore[arg-type]
        topology=Topology(tuple(Host(f"worker-{i}", (0,)) for i in range(num_nodes))),
        forwarded=Forwarded({}, {}, 0),
        backend="ssh",
        own_node=own_node,
        python="python3",
        cwd="/",
        device_kind="slot",
        device_names={},
    )


def ready(*addresses: str, port_in_use: bool = False) -> Ready:
    return Ready("host", 1, "3.11", addresses, port_in_use, 40001)


def test_before_anyone_is_asked() -> None:
    assert assumed_master(resolved(1)) == Master("127.0.0.1", 29500)
    assert assumed_master(resolved(2)) == Master("worker-0", 29500)
    assert assumed_master(resolved(2, master_addr="m", master_port=7)) == Master("m", 7)


def test_the_address_the_launcher_came_by() -> None:
    answers = {0: ready("10.0.0.1", "172.17.0.1"), 1: ready("10.0.0.2")}
    assert settled_master(resolved(2), answers) == Master("10.0.0.1", 29500)


def test_a_loopback_address_is_of_no_use_to_other_hosts() -> None:
    answers = {0: ready("127.0.0.1", "10.0.0.1"), 1: ready("10.0.0.2")}
    assert settled_master(resolved(2), answers) == Master("10.0.0.1", 29500)
    answers = {0: ready("127.0.0.1"), 1: ready("10.0.0.2")}
    with pytest.raises(
        MasterError, match=r"no address that the other hosts can reach \(its own: 127\.0\.0\.1\)"
    ):
        settled_master(resolved(2), answers)


def test_hosts_that_are_all_this_machine_meet_on_loopback() -> None:
    answers = {0: ready("127.0.0.1", "10.0.0.1"), 1: ready("127.0.0.1", "10.0.0.1")}
    assert settled_master(resolved(2), answers).addr == "127.0.0.1"


def test_the_users_word_counts() -> None:
    answers = {0: ready("10.0.0.1"), 1: ready("10.0.0.2")}
    assert settled_master(resolved(2, master_addr="ib0.worker-0", master_port=5), answers) == Master(
        "ib0.worker-0", 5
    )


def test_a_busy_default_port_gives_way_to_a_free_one() -> None:
    assert settled_master(resolved(1), {0: ready(port_in_use=True)}) == Master("127.0.0.1", 40001)


@pytest.mark.parametrize(
    "case", [resolved(1, master_port=29500), resolved(2, own_node=0, master_addr="10.0.0.1")]
)
def test_a_busy_port_that_others_count_on_is_an_error(case: Resolved) -> None:
    with pytest.raises(MasterError, match="port 29500 is in use"):
        settled_master(case, {0: ready("10.0.0.1", port_in_use=True)})


def test_a_pod_other_than_node_0_takes_what_it_is_told() -> None:
    case = resolved(2, own_node=1, master_addr="10.0.0.1", master_port=5)
    assert settled_master(case, {1: ready("10.0.0.2", port_in_use=True)}) == Master("10.0.0.1", 5)
