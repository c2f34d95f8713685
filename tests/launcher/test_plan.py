"""The rank map: covers the world once, and looks as documented, word for word."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.hostfile import Host, Topology
from dslaunch.launcher.dry_run import plan_as_json, print_table
from dslaunch.launcher.environment import Forwarded
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.node_plan import plan_from_json, plans_to_json
from dslaunch.launcher.plan import Resolved, make_plan, rank_argv
from dslaunch.launcher.render import ARGV_BOOTSTRAP, STDIN_BOOTSTRAP
from dslaunch.launcher.request import LaunchRequest


def resolved(topology: Topology, request: LaunchRequest, **changes: object) -> Resolved:
    fields: dict[str, object] = {
        "request": request,
        "topology": topology,
        "forwarded": Forwarded({"PYTHONPATH": "/job"}, {"PYTHON": 1}, 7),
        "origin": "hostfile hosts",
        "backend": "ssh",
        "by_hand": False,
        "own_node": None,
        "job_key": None,
        "script_digest": "",
        "attempt": 0,
        "python": "/usr/bin/python3",
        "cwd": "/job",
        "device_kind": "slot",
        "visible_devices": "CUDA_VISIBLE_DEVICES",
        "device_names": {},
        **changes,
    }
    return Resolved(**fields)  # type: ignore[arg-type]


slots = st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True).map(tuple)
topologies = st.lists(slots, min_size=1, max_size=5).map(
    lambda nodes: Topology(tuple(Host(f"worker-{i}", slots) for i, slots in enumerate(nodes)))
)


@given(topologies)
def test_ranks_cover_the_world_once_and_local_ranks_count_from_0(topology: Topology) -> None:
    request = LaunchRequest(script="train.py")
    here = resolved(topology, request)
    plan = make_plan(here, assumed_master(here), "job")
    assert [rank.rank for _, rank in plan.ranks] == list(range(plan.world_size))
    assert plan.world_size == topology.num_slots
    for node, host in zip(plan.nodes, topology, strict=True):
        assert [rank.local_rank for rank in node.ranks] == list(range(len(host.slots)))
        assert tuple(rank.slot for rank in node.ranks) == host.slots
        for rank in node.ranks:
            assert rank.env["CUDA_VISIBLE_DEVICES"].split(",")[rank.local_rank] == str(rank.slot)
            assert rank.env["LOCAL_WORLD_SIZE"] == str(len(host.slots))
    text = plans_to_json(plan.nodes)
    assert tuple(plan_from_json(text, i) for i in range(len(plan.nodes))) == plan.nodes


@pytest.mark.parametrize(
    ("flags", "argv"),
    [
        ({}, ("py", "-u", "x", "--local_rank=2", "a")),
        ({"module": True}, ("py", "-u", "-m", "x", "--local_rank=2", "a")),
        ({"no_python": True}, ("x", "--local_rank=2", "a")),
    ],
)
def test_run_modes(flags: dict[str, bool], argv: tuple[str, ...]) -> None:
    request = LaunchRequest(script="x", args=("a",), **flags)  # type: ignore[arg-type]
    assert rank_argv(request, "py", 2) == argv


def test_no_local_rank() -> None:
    assert rank_argv(LaunchRequest(script="x", no_local_rank=True), "py", 2) == ("py", "-u", "x")


UNEQUAL = Topology((Host("worker-0", (0, 1)), Host("worker-1", (3,))))


def test_the_json_of_a_dry_run_whole() -> None:
    request = LaunchRequest(script="train.py", args=("--lr", "1 e"), master_port=29501)
    here = resolved(UNEQUAL, request)
    record = json.loads(plan_as_json(here, make_plan(here, assumed_master(here), "dry-run")))
    archive_bytes = {node["argv"].pop(4) for node in record["nodes"]}
    assert len(archive_bytes) == 1
    assert int(archive_bytes.pop()) > 1000

    def rank(rank: int, local_rank: int, slot: int, node_rank: int, local_size: int, devices: str) -> object:
        return {
            "rank": rank,
            "local_rank": local_rank,
            "slot": slot,
            "env": {
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": "3",
                "LOCAL_WORLD_SIZE": str(local_size),
                "LOCAL_SIZE": str(local_size),
                "NODE_RANK": str(node_rank),
                "GROUP_RANK": str(node_rank),
                "CROSS_RANK": str(node_rank),
                "CROSS_SIZE": "2",
                "MASTER_ADDR": "worker-0",
                "MASTER_PORT": "29501",
                "DSLAUNCH_JOB_ID": "dry-run",
                "DSLAUNCH_NODE_ID": f"dry-run.{node_rank}",
                "DSLAUNCH_HOST": f"worker-{node_rank}",
                "DSLAUNCH_ATTEMPT": "0",
                "CUDA_VISIBLE_DEVICES": devices,
            },
            "argv": ["/usr/bin/python3", "-u", "train.py", f"--local_rank={local_rank}", "--lr", "1 e"],
        }

    argv = ["/usr/bin/python3", "-ISu", "-c", STDIN_BOOTSTRAP, "29501/dry-run", "0"]
    env = {"PYTHONPATH": "/job"}
    assert record == {
        "world_size": 3,
        "master_addr": "worker-0",
        "master_port": 29501,
        "backend": "ssh",
        "engine": "auto",
        "nodes": [
            {
                "node_rank": 0,
                "host": "worker-0",
                "env": env,
                "argv": argv,
                "tool_env": {},
                "ranks": [rank(0, 0, 0, 0, 2, "0,1"), rank(1, 1, 1, 0, 2, "0,1")],
            },
            {
                "node_rank": 1,
                "host": "worker-1",
                "env": env,
                "argv": argv,
                "tool_env": {},
                "ranks": [rank(2, 0, 3, 1, 1, "3")],
            },
        ],
        "forwarded": {"PYTHONPATH": "/job"},
    }


def test_the_table_of_a_dry_run_whole(capsys: pytest.CaptureFixture[str]) -> None:
    here = resolved(UNEQUAL, LaunchRequest(script="train.py", args=("[red]",)))
    print_table(here, make_plan(here, assumed_master(here), "dry-run"))
    assert capsys.readouterr().out == Path(__file__).with_name("dry_run_table.txt").read_text()


@pytest.mark.parametrize("bootstrap", [ARGV_BOOTSTRAP, STDIN_BOOTSTRAP])
def test_the_bootstrap_is_one_word_to_every_shell(bootstrap: str) -> None:
    assert not set("'!$\\\n`") & set(bootstrap)
