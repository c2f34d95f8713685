"""Requests against a machine: which hosts and devices come out, and every error word for word."""

from dataclasses import replace

import pytest

from dslaunch.hostfile import Host, TopologyError
from dslaunch.launcher.devices import LocalDevices
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.machine import Machine
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.request import Launcher, LaunchRequest
from dslaunch.launcher.resolve import resolve

HOSTS = "worker-0 slots=2\nworker-1 slots=4\n"


def request(**flags: object) -> LaunchRequest:
    return LaunchRequest(script="train.py", **flags)  # type: ignore[arg-type]


def seen(found: Resolved) -> tuple[str, tuple[Host, ...], str]:
    return found.backend, found.topology.hosts, found.device_kind


@pytest.fixture(autouse=True)
def _files(machine: Machine) -> None:
    (machine.cwd / "train.py").write_text("")
    (machine.cwd / "hosts").write_text(HOSTS)
    (machine.cwd / "one").write_text("worker-1 slots=2\n")
    (machine.cwd / "here").write_text("localhost slots=2\n")


def with_gpus(machine: Machine, num_devices: int, **environ: str) -> Machine:
    return replace(machine, count_devices=lambda _: LocalDevices("cuda", num_devices), environ=environ)


def test_without_hostfile_and_devices_one_cpu_rank(machine: Machine) -> None:
    found = resolve(request(), machine)
    assert (found.backend, found.topology.hosts, found.device_kind) == (
        "local",
        (Host("localhost", (0,)),),
        "cpu",
    )


def test_num_gpus_counts_cpu_ranks_where_there_are_no_devices(machine: Machine) -> None:
    assert resolve(request(num_gpus=3), machine).topology.num_slots == 3


def test_without_hostfile_every_device(machine: Machine) -> None:
    found = resolve(request(), with_gpus(machine, 8))
    assert found.topology.hosts == (Host("localhost", tuple(range(8))),)
    assert found.device_kind == "cuda"


@pytest.mark.parametrize(
    ("visible", "flags", "slots", "names"),
    [
        ("2,3", {}, (2, 3), {}),
        ("3, 2", {}, (3, 2), {}),
        ("2,3", {"num_gpus": 1}, (2,), {}),
        ("2,3", {"include": "localhost:3"}, (3,), {}),
        ("2,3", {"num_nodes": 1}, (2, 3), {}),
        ("GPU-a,GPU-b", {}, (0, 1), {0: "GPU-a", 1: "GPU-b"}),
        ("1,-1,2", {}, (1,), {}),
    ],
)
def test_visible_devices_are_respected(
    machine: Machine, visible: str, flags: dict[str, object], slots: tuple[int, ...], names: dict[int, str]
) -> None:
    found = resolve(request(**flags), with_gpus(machine, 8, CUDA_VISIBLE_DEVICES=visible))
    assert (found.topology.hosts[0].slots, found.device_names) == (slots, names)


def test_no_visible_device_is_a_cpu_machine(machine: Machine) -> None:
    assert resolve(request(), with_gpus(machine, 8, CUDA_VISIBLE_DEVICES="")).device_kind == "cpu"


def test_a_hostfile_goes_over_ssh(machine: Machine) -> None:
    found = resolve(request(hostfile="hosts"), machine)
    assert (found.backend, found.topology.num_slots, found.device_kind) == ("ssh", 6, "slot")


def test_one_named_remote_host_is_that_host(machine: Machine) -> None:
    for flags in ({"hostfile": "one"}, {"hostfile": "hosts", "include": "worker-1:0"}):
        assert resolve(request(**flags), machine).backend == "ssh"


def test_this_machine_alone_needs_no_ssh_unless_forced(machine: Machine) -> None:
    assert resolve(request(hostfile="here"), machine).backend == "local"
    assert resolve(request(hostfile="here", force_multi=True), machine).backend == "ssh"
    assert resolve(request(hostfile="here", launcher=Launcher.SSH), machine).backend == "ssh"


def test_no_ssh_is_one_node_of_the_plan(machine: Machine) -> None:
    found = resolve(request(hostfile="hosts", no_ssh=True, node_rank=1, master_addr="10.0.0.1"), machine)
    assert (found.backend, found.own_node, len(found.topology)) == ("local", 1, 2)


def test_no_ssh_by_hand_without_a_hostfile(machine: Machine) -> None:
    flags = {"num_nodes": 2, "num_gpus": 8, "no_ssh": True, "node_rank": 1, "master_addr": "10.0.0.1"}
    found = resolve(request(**flags), machine)
    assert found.topology.hosts == (Host("node-0", tuple(range(8))), Host("node-1", tuple(range(8))))


def test_ssh_port_is_for_hosts_that_name_none(machine: Machine) -> None:
    (machine.cwd / "hosts").write_text("worker-0:2200 slots=1\nworker-1 slots=1\n")
    found = resolve(request(hostfile="hosts", ssh_port=22022), machine)
    assert [host.port for host in found.topology] == [2200, 22022]


def test_env_files_home_then_here(machine: Machine) -> None:
    (machine.home / ".deepspeed_env").write_text("A=home\nB=home\n")
    (machine.cwd / ".deepspeed_env").write_text("B=here\n")
    variables = resolve(request(), machine).forwarded.variables
    assert (variables["A"], variables["B"]) == ("home", "here")


def test_ds_env_file_names_another(machine: Machine) -> None:
    (machine.cwd / "env.txt").write_text("A=1\n")
    named = replace(machine, environ={"DS_ENV_FILE": "env.txt"})
    assert resolve(request(), named).forwarded.variables["A"] == "1"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"hostfile": "nope"}, "no hostfile nope"),
        ({"hostfile": "."}, "cannot read hostfile .: Is a directory"),
        ({"hostfile": "hosts", "launcher": Launcher.LOCAL}, "--launcher local with 2 hosts"),
        ({"num_nodes": 2}, "--num_nodes 2 without a hostfile"),
        ({"node_rank": 0}, "--node_rank without --no_ssh"),
        (
            {"hostfile": "hosts", "no_ssh": True, "coordination_port": "none"},
            "--no_ssh without --node_rank",
        ),
        ({"hostfile": "hosts", "no_ssh": True, "node_rank": 2}, "--node_rank 2 of 2 nodes"),
        ({"hostfile": "hosts", "no_ssh": True, "node_rank": 1}, "--no_ssh without --master_addr"),
    ],
)
def test_what_cannot_be_used_is_said(machine: Machine, flags: dict[str, object], error: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(request(**flags), machine)
    assert str(caught.value) == error
    assert caught.value.hint


@pytest.mark.parametrize(
    "flags",
    [
        {"hostfile": "hosts", "include": "worker-9"},
        {"hostfile": "hosts", "include": "worker-0:2"},
        {"hostfile": "hosts", "num_gpus": 3},
        {"hostfile": "hosts", "num_nodes": 3},
        {"hostfile": "hosts", "exclude": "worker-0@worker-1"},
        {"include": "localhost:7"},
    ],
)
def test_what_is_not_there_is_said(machine: Machine, flags: dict[str, object]) -> None:
    with pytest.raises(TopologyError) as caught:
        resolve(request(**flags), machine)
    assert caught.value.hint


def test_a_script_that_is_not_there(machine: Machine) -> None:
    with pytest.raises(UsageError, match=f"no script nope.py in {machine.cwd}"):
        resolve(LaunchRequest(script="nope.py"), machine)
    assert resolve(LaunchRequest(script="nope", module=True), machine)
    assert resolve(LaunchRequest(script="nope.py", hostfile="hosts"), machine)  # the hosts may have it


def test_a_bad_line_has_file_and_number(machine: Machine) -> None:
    (machine.cwd / "hosts").write_text("worker-0 slots=2\nworker-1 slots=4x\n")
    with pytest.raises(TopologyError, match=r"^hosts:2: .*'worker-1 slots=4x'$"):
        resolve(request(hostfile="hosts"), machine)
