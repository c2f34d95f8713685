"""Every rule by one broken host among healthy ones, as whole findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from healthy_hosts import ASKED, GIB, SLOTS, healthy
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.check.host_answer import Asked, HostAnswer, Severity
from dslaunch.launcher.check.judge import judge
from dslaunch.launcher.check.show import line
from dslaunch.launcher.clock_offset import ClockOffset
from dslaunch.launcher.survey.records import ANY_PORT, MASTER_PORT, NEXT_HOST, Gpu, Holder, Space

Break = Callable[[HostAnswer], HostAnswer]


def part(name: str, **changes: Any) -> Break:
    """A host whose answer differs in one of its parts."""

    def broken(one: HostAnswer) -> HostAnswer:
        assert one.answer is not None
        return replace(
            one, answer=one.answer._replace(**{name: getattr(one.answer, name)._replace(**changes)})
        )

    return broken


def package(name: str, version: str) -> Break:
    def broken(one: HostAnswer) -> HostAnswer:
        assert one.answer is not None
        return part("software", packages={**one.answer.software.packages, name: version})(one)

    return broken


def gpu(**changes: Any) -> Gpu:
    return Gpu(1, "H200", 140 * GIB, 0, ())._replace(**changes)


def no_call(*purposes: str) -> Break:
    def broken(one: HostAnswer) -> HostAnswer:
        assert one.answer is not None
        calls = tuple(
            call._replace(address="", interface="", error="no answer") if call.purpose in purposes else call
            for call in one.answer.network.calls
        )
        return part("network", calls=calls)(one)

    return broken


def space(purpose: str, path: str, total: int, free: int, inodes: int = -1) -> Break:
    return part("machine", spaces=(Space(purpose, path, total, free, inodes),))


def found_with(place: int, broken: Break, num_hosts: int = 4, asked: Asked = ASKED) -> list[str]:
    hosts = healthy(num_hosts)
    hosts[place] = broken(hosts[place])
    return [line(found) for found in judge(asked, hosts)]


@given(st.integers(0, 40))
def test_a_healthy_cluster_has_no_findings(num_hosts: int) -> None:
    assert judge(ASKED, healthy(num_hosts)) == ()


CASES: list[tuple[Break, str]] = [
    (
        lambda one: replace(one, ready=None, answer=None, what="connection refused", hint="is sshd running?"),
        "error: worker-2: connection refused -> is sshd running?",
    ),
    (
        package("torch", "2.12.1"),
        "error: worker-2: torch 2.12.1, 3 others have 2.13.0 -> "
        "/venv/bin/python -m pip install torch==2.13.0",
    ),
    (
        part("software", packages={}),
        "error: worker-2: no torch, 3 others have 2.13.0 -> /venv/bin/python -m pip install torch==2.13.0",
    ),
    (
        package("nccl", "2.26.2"),
        "error: worker-2: NCCL 2.26.2, 3 others have 2.28.9 -> "
        "install torch 2.13.0 from where the others have it: pip install --force-reinstall",
    ),
    (
        part("software", python="3.11.1"),
        "warning: worker-2: Python 3.11, 3 others have 3.12 -> "
        "name one that all have: --python, or python= in the hostfile",
    ),
    (
        part("software", driver="590.1"),
        "warning: worker-2: driver 590.1, 3 others have 580.95.05 -> install the same driver on all hosts",
    ),
    (
        part("program", folder="is not there", digest=""),
        "error: worker-2: folder /work is not there -> "
        "create or mount it on this host, or choose another with --cwd",
    ),
    (
        part("program", script="is not there", digest=""),
        "error: worker-2: train.py is not there in /work -> copy it to this host, or use a shared folder",
    ),
    (
        part("program", digest="cd" * 32),
        "error: worker-2: another train.py (SHA-256 cdcdcdcdcdcd), 3 others have abababababab -> "
        "copy it to this host, or use a shared folder",
    ),
    (
        part("devices", num_devices=1),
        "error: worker-2: 1 cuda device for 2 slots -> "
        "correct slots= in the hostfile, or look why the driver misses a device (nvidia-smi, dmesg)",
    ),
    (
        part("devices", kind="cpu", num_devices=0, gpus=()),
        "error: worker-2: no devices for 2 slots -> "
        "correct slots= in the hostfile, or look why the driver misses a device (nvidia-smi, dmesg)",
    ),
    (
        part(
            "devices",
            gpus=(gpu(used_bytes=31 * GIB),),
            holders=(Holder(1, 4711, "python train.py", 31 * GIB),),
        ),
        "warning: worker-2: device 1 is in use, 31 GiB of 140 GiB: pid 4711 (python train.py) -> "
        "end it, if it is yours: ssh worker-2 kill 4711",
    ),
    (
        part("devices", gpus=(gpu(used_bytes=101 * GIB),)),
        "error: worker-2: device 1 is in use, 101 GiB of 140 GiB: by whom cannot be seen -> "
        "look for it on the host itself, or in its other containers",
    ),
    (
        part("devices", gpus=(gpu(troubles=("7 uncorrected memory errors since it was reset",)),)),
        "error: worker-2: device 1: 7 uncorrected memory errors since it was reset -> "
        "reset it: nvidia-smi --gpu-reset, or boot the host",
    ),
    (
        part("devices", xids=("Xid 79 on 0000:1a:00, 12 min ago",)),
        "warning: worker-2: Xid 79 on 0000:1a:00, 12 min ago -> "
        "look it up in NVIDIA's list of Xids; --exclude worker-2 until it is well",
    ),
    (
        part("devices", links=(("mlx5_0/1", "DOWN"),)),
        "warning: worker-2: RDMA port mlx5_0/1 is DOWN -> look at its cable and the switch: ibstat",
    ),
    (
        no_call(MASTER_PORT),
        "error: worker-2: does not reach worker-0 (10.0.0.1) at port 29500: no answer -> "
        "open port 29500 in the firewall, or choose another: --master_port",
    ),
    (
        no_call(ANY_PORT),
        "error: worker-2: does not reach worker-0 (10.0.0.1) at port 40000, which the system chose: "
        "no answer -> "
        "open all ports between the hosts: NCCL and gloo connect at those that the system gives them",
    ),
    (
        no_call(MASTER_PORT, ANY_PORT),
        "error: worker-2: does not reach worker-0 (10.0.0.1): no answer -> "
        "look for a firewall or a missing route; or name an address that all reach: --master_addr",
    ),
    (
        no_call(NEXT_HOST),
        "error: worker-2: does not reach worker-3 (10.0.0.4): no answer -> "
        "look for a firewall or a missing route between the two",
    ),
    (
        part("network", master_address="127.0.1.1"),
        "warning: worker-2: resolves worker-0 to 127.0.1.1, which is itself -> "
        "in its /etc/hosts, give worker-0 the address that others reach it by",
    ),
    (
        part("network", own_address="127.0.1.1"),
        "note: worker-2: resolves its own name to 127.0.1.1 -> "
        "gloo and NCCL are told to use eth0; for other programs, correct its /etc/hosts",
    ),
    (
        part("network", missing_interfaces=(("NCCL_SOCKET_IFNAME", "ib0"),)),
        "error: worker-2: NCCL_SOCKET_IFNAME=ib0 names no interface of this host -> "
        "it has lo, eth0; correct or unset it",
    ),
    (
        lambda one: replace(one, clock=ClockOffset(-3_200_000_000, 10**6)),
        "warning: worker-2: its clock is 3.2 s ahead of the others -> "
        "start an NTP client on it: timedatectl set-ntp true; chronyc makestep",
    ),
    (
        space("/dev/shm", "/dev/shm", 64 << 20, 64 << 20),
        "warning: worker-2: /dev/shm has room for 64 MiB only; NCCL and data loaders use it -> "
        "mount -o remount,size=50% /dev/shm; docker run --shm-size=16g; in a pod an emptyDir in memory",
    ),
    (
        space("/dev/shm", "/dev/shm", 8 * GIB, 1 << 20),
        "warning: worker-2: /dev/shm is nearly full: 1 MiB of 8 GiB left -> "
        "delete what dead jobs left there: ssh worker-2 ls -lt /dev/shm",
    ),
    (
        space("temporary files", "/tmp", 8 * GIB, 4096),
        "error: worker-2: /tmp (temporary files) has 4 KiB of 8 GiB left -> "
        "delete something, or choose another folder: TMPDIR",
    ),
    (
        space("the folder", "/work", 8 * GIB, 4 * GIB, 3),
        "error: worker-2: /work (the folder) has room for 3 more files -> "
        "delete something, or choose another folder: --cwd",
    ),
    (
        part("machine", memlock_bytes=65536),
        "warning: worker-2: may lock 64 KiB of memory, most hosts have no limit -> "
        '"* - memlock unlimited" in /etc/security/limits.d/, LimitMEMLOCK=infinity for sshd and slurmd, '
        "--ulimit memlock=-1 for docker",
    ),
    (
        part("machine", num_files=256),
        "warning: worker-2: may open 256 files, most hosts have 1048576 -> "
        '"* - nofile 1048576" in /etc/security/limits.d/, --ulimit nofile=1048576 for docker',
    ),
    (
        part("machine", memory_bytes=500 * GIB),
        "warning: worker-2: 500 GiB of memory, most hosts like it have 1000 GiB -> "
        "look for a memory module that failed, or a limit of its container",
    ),
    (
        part("machine", memory_errors=2),
        "error: worker-2: 2 uncorrected errors of its memory since it was booted -> "
        "have its memory tested; --exclude worker-2 until then",
    ),
    (
        lambda one: replace(
            one, answer=one.answer and one.answer._replace(unknown={"machine": "no answer in 10 s"})
        ),
        "warning: worker-2: its machine cannot be looked at: no answer in 10 s -> "
        "look at its disks and its load",
    ),
]


@pytest.mark.parametrize(("broken", "said"), CASES, ids=[said[:60] for _, said in CASES])
def test_a_broken_host_is_named_with_its_remedy(broken: Break, said: str) -> None:
    assert found_with(2, broken) == [said]


def test_mtu_and_speed_of_the_way_to_the_others() -> None:
    def slow(one: HostAnswer) -> HostAnswer:
        assert one.answer is not None
        eth0 = one.answer.network.interfaces[1]._replace(mtu=1500, speed_mbps=100)
        return part("network", interfaces=(eth0,))(one)

    for place in (0, 3):
        assert found_with(place, slow) == [
            f"warning: worker-{place}: MTU of eth0 is 1500, most hosts have 9000 -> "
            "ip link set eth0 mtu 9000: large messages may hang, small ones pass",
            f"warning: worker-{place}: eth0 runs at 100 Mb/s, on most hosts at 100000 -> "
            "look at its cable, its adapter and the switch: ethtool",
        ]


def test_a_first_host_that_nobody_reaches_is_the_one_at_fault() -> None:
    hosts = [no_call(MASTER_PORT, ANY_PORT)(one) for one in healthy(4)]
    assert [line(found) for found in judge(ASKED, hosts)] == [
        "error: worker-0: is not reached by worker-[1-3] (10.0.0.1): no answer -> "
        "look for a firewall or a missing route; or name an address that all reach: --master_addr"
    ]


def test_what_is_true_of_several_hosts_is_told_once() -> None:
    hosts = [*healthy(6)[:4], *map(package("torch", "2.12.1"), healthy(6)[4:])]
    assert [found.hosts for found in judge(ASKED, hosts)] == [("worker-4", "worker-5")]


def test_errors_come_before_warnings_and_notes() -> None:
    hosts = healthy(3)
    hosts[0] = part("network", own_address="127.0.1.1")(hosts[0])
    hosts[1] = part("machine", memlock_bytes=65536)(hosts[1])
    hosts[2] = package("torch", "2.12.1")(hosts[2])
    assert [found.severity for found in judge(ASKED, hosts)] == list(Severity)


def test_a_gpu_that_is_no_slot_of_ours_may_be_busy() -> None:
    busy = part("devices", gpus=(gpu(device=max(SLOTS) + 1, used_bytes=31 * GIB),))
    assert found_with(2, busy) == []


def test_daemons_that_hold_devices_are_no_finding() -> None:
    held = part("devices", holders=(Holder(1, 9, "/usr/bin/nvidia-persistenced --user x", 0),))
    assert found_with(2, held) == []


def test_hosts_of_cpus_need_no_devices() -> None:
    hosts = [part("devices", kind="cpu", num_devices=0, gpus=())(one) for one in healthy(3)]
    assert judge(ASKED, hosts) == ()
    assert len(judge(replace(ASKED, accelerator="cuda"), hosts)) == 1


def test_names_that_the_user_chose_must_be_right() -> None:
    named = replace(ASKED, master_addr="head", has_named_port=True)
    assert found_with(1, part("network", master_address=""), asked=named) == [
        "error: worker-1: cannot resolve --master_addr head -> name an address, or add it to /etc/hosts"
    ]
    in_use = lambda one: replace(one, ready=one.ready and one.ready._replace(port_in_use=True))  # noqa: E731
    assert found_with(0, in_use, asked=named) == [
        "error: worker-0: port 29500 is in use -> choose another: --master_port, or end who holds it"
    ]
    assert found_with(0, in_use) == []


def test_a_host_without_common_interface_must_not_listen_on_loopback() -> None:
    hosts = healthy(3)
    told = hosts[2].answer
    assert told is not None
    hosts[2] = part(
        "network",
        own_address="127.0.1.1",
        interfaces=tuple(one._replace(name="eno1") for one in told.network.interfaces[1:]),
        calls=tuple(call._replace(interface="eno1") for call in told.network.calls),
    )(hosts[2])
    assert [line(found) for found in judge(ASKED, hosts)] == [
        "warning: worker-2: resolves its own name to 127.0.1.1 -> "
        "gloo would listen there: set GLOO_SOCKET_IFNAME, or correct its /etc/hosts"
    ]


@given(st.lists(st.sampled_from(["2.12.1", "2.13.0", ""]), min_size=1, max_size=12))
def test_versions_are_a_finding_exactly_for_hosts_that_differ_from_the_usual(versions: list[str]) -> None:
    hosts = [
        part("software", packages={"torch": version} if version else {}, cuda="")(one)
        for one, version in zip(healthy(len(versions)), versions, strict=True)
    ]
    blamed = {host for found in judge(ASKED, hosts) for host in found.hosts}
    right = [one.host for one, version in zip(hosts, versions, strict=True) if one.host not in blamed]
    kept = {version for one, version in zip(hosts, versions, strict=True) if one.host in right}
    assert len(kept) == 1
    if any(versions):
        assert kept == {max(filter(None, versions), key=versions.count)} or versions.count(*kept) == max(
            versions.count(version) for version in versions if version
        )
