"""Where ranks meet, by what the hosts answered."""

from dataclasses import replace

import pytest

from dslaunch.hostfile import Host, Topology
from dslaunch.launcher.environment import Forwarded
from dslaunch.launcher.master import MasterError, assumed_master, settle
from dslaunch.launcher.plan import Master, Resolved
from dslaunch.launcher.request import LaunchRequest
from dslaunch.launcher.wire import Reached, Ready


def resolved(num_nodes: int, own_node: int | None = None, **flags: object) -> Resolved:
    return Resolved(
        request=LaunchRequest(script="x.py", **flags),  # type: ignore[arg-type]
        topology=Topology(tuple(Host(f"worker-{i}", (0,)) for i in range(num_nodes))),
        origin="hostfile hosts",
        forwarded=Forwarded({}, {}, 0),
        backend="ssh",
        by_hand=own_node is not None,
        own_node=own_node,
        job_key=None,
        script_digest="",
        attempt=0,
        python="python3",
        cwd="/",
        device_kind="slot",
        visible_devices="CUDA_VISIBLE_DEVICES",
        device_names={},
    )


def ready(*addresses: str, port_in_use: bool = False) -> Ready:
    interfaces = tuple("lo" if address.startswith("127.") else "eth0" for address in addresses)
    return Ready("host", 1, "3.11", addresses, interfaces, port_in_use, 40001, 40002)


def reached(**interfaces: str) -> Reached:
    """Reached(eth0="10.0.0.1") read backwards: by which interface which address."""
    return Reached(tuple(interfaces.values()), tuple(interfaces))


def test_before_anyone_is_asked() -> None:
    assert assumed_master(resolved(1)) == Master("127.0.0.1", 29500)
    assert assumed_master(resolved(2)) == Master("worker-0", 29500)
    assert assumed_master(resolved(2, master_addr="m", master_port=7)) == Master("m", 7)


def test_the_first_address_that_every_other_host_has_reached() -> None:
    answers = {0: ready("10.0.0.1", "192.168.0.1"), 1: ready("10.0.0.2"), 2: ready("10.0.0.3")}
    meeting = settle(
        resolved(3), answers, {1: reached(eth0="10.0.0.1", ib0="192.168.0.1"), 2: reached(ib0="192.168.0.1")}
    )
    assert meeting.master == Master("192.168.0.1", 29500)


def test_no_address_that_all_reach_is_an_error_that_lists_them() -> None:
    answers = {0: ready("127.0.0.1", "10.0.0.1"), 1: ready("10.0.0.2")}
    with pytest.raises(MasterError) as caught:
        settle(resolved(2), answers, {1: Reached((), ())})
    assert str(caught.value) == (
        "no address that all other hosts reach: 127.0.0.1 (lo), 10.0.0.1 (eth0); worker-1 reaches none"
    )


def test_the_interface_is_named_when_all_use_the_same() -> None:
    answers = {i: ready(f"10.0.0.{i + 1}") for i in range(3)}
    same = settle(resolved(3), answers, {1: reached(eth0="10.0.0.1"), 2: reached(eth0="10.0.0.1")})
    assert same.network == {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    different = settle(resolved(3), answers, {1: reached(eth0="10.0.0.1"), 2: reached(eth1="10.0.0.1")})
    assert different.network == {}


def test_loopback_is_no_interface_to_insist_on() -> None:
    answers = {0: ready("127.0.0.1"), 1: ready("127.0.0.1")}
    meeting = settle(resolved(2), answers, {1: reached(lo="127.0.0.1")})
    assert (meeting.master.addr, meeting.network) == ("127.0.0.1", {})


def test_unasked_hosts_take_the_address_the_launcher_came_by() -> None:
    answers = {0: ready("10.0.0.1", "172.17.0.1"), 1: ready("10.0.0.2")}
    assert settle(resolved(2), answers, {}).master == Master("10.0.0.1", 29500)


def test_unasked_a_loopback_address_is_of_no_use_to_other_hosts() -> None:
    answers = {0: ready("127.0.0.1", "10.0.0.1"), 1: ready("10.0.0.2")}
    assert settle(resolved(2), answers, {}).master == Master("10.0.0.1", 29500)
    answers = {0: ready("127.0.0.1"), 1: ready("10.0.0.2")}
    with pytest.raises(
        MasterError, match=r"no address that the other hosts can mean \(its own: 127\.0\.0\.1\)"
    ):
        settle(resolved(2), answers, {})


def test_hosts_that_are_all_this_machine_meet_on_loopback() -> None:
    answers = {0: ready("127.0.0.1", "10.0.0.1"), 1: ready("127.0.0.1", "10.0.0.1")}
    assert settle(resolved(2), answers, {}).master.addr == "127.0.0.1"


def test_the_users_word_counts() -> None:
    answers = {0: ready("10.0.0.1"), 1: ready("10.0.0.2")}
    meeting = settle(resolved(2, master_addr="ib0.worker-0", master_port=5), answers, {})
    assert meeting.master == Master("ib0.worker-0", 5)


def test_another_attempt_takes_another_port() -> None:
    again = replace(resolved(1), attempt=1)
    assert settle(again, {0: ready()}, {}).master == Master("127.0.0.1", 40001)
    named = replace(resolved(1, master_port=7), attempt=1)
    assert settle(named, {0: ready()}, {}).master == Master("127.0.0.1", 7)


def test_a_busy_default_port_gives_way_to_a_free_one() -> None:
    for alone in (resolved(1), resolved(1, own_node=0)):
        assert settle(alone, {0: ready(port_in_use=True)}, {}).master == Master("127.0.0.1", 40001)


@pytest.mark.parametrize(
    "case", [resolved(1, master_port=29500), resolved(2, own_node=0, master_addr="10.0.0.1")]
)
def test_a_busy_port_that_others_count_on_is_an_error(case: Resolved) -> None:
    with pytest.raises(MasterError, match="port 29500 is in use"):
        settle(case, {0: ready("10.0.0.1", port_in_use=True)}, {})


def test_a_pod_other_than_node_0_takes_what_it_is_told() -> None:
    case = resolved(2, own_node=1, master_addr="10.0.0.1", master_port=5)
    assert settle(case, {1: ready("10.0.0.2", port_in_use=True)}, {}).master == Master("10.0.0.1", 5)
