"""What a pod is told about its place, by example and word for word."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.hostfile import Pod, TopologyError, find_pod

HINT = "correct or unset it, or say it on the command line"


@pytest.mark.parametrize("environ", [{}, {"MASTER_ADDR": "a", "MASTER_PORT": "1"}, {"PET_NNODES": ""}])
def test_no_pod(environ: dict[str, str]) -> None:
    assert find_pod(environ) is None


@pytest.mark.parametrize(
    ("environ", "pod"),
    [
        (
            {
                "PET_NNODES": "2",
                "PET_NODE_RANK": "1",
                "PET_NPROC_PER_NODE": "8",
                "PET_MASTER_ADDR": "job-node-0-0.job",
                "PET_MASTER_PORT": "29400",
            },
            Pod(2, 1, 8, "job-node-0-0.job", 29400),
        ),
        ({"PET_NNODES": "3:3"}, Pod(num_nodes=3)),
        ({"PET_NPROC_PER_NODE": "auto"}, Pod()),
        ({"PET_NPROC_PER_NODE": "gpu", "PET_NNODES": "2"}, Pod(num_nodes=2)),
        ({"JOB_COMPLETION_INDEX": "3"}, Pod(node_rank=3)),
        ({"NODE_RANK": "2", "JOB_COMPLETION_INDEX": "3"}, Pod(node_rank=2)),
        ({"PET_NODE_RANK": "1", "NODE_RANK": "2", "JOB_COMPLETION_INDEX": "3"}, Pod(node_rank=1)),
        ({"NODE_RANK": "0", "MASTER_PORT": "29500"}, Pod(node_rank=0, master_port=29500)),
        ({"NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1"}, Pod(node_rank=0, master_addr="10.0.0.1")),
        ({"PET_MASTER_ADDR": "a", "MASTER_ADDR": "b"}, Pod(master_addr="a")),
        ({"PET_MASTER_ADDR": "[fd00::1]"}, Pod(master_addr="fd00::1")),
    ],
)
def test_pods(environ: dict[str, str], pod: Pod) -> None:
    assert find_pod(environ) == pod


@pytest.mark.parametrize(
    ("environ", "what", "hint"),
    [
        ({"PET_NNODES": "two"}, "PET_NNODES='two': expects a number", HINT),
        ({"PET_NNODES": "0"}, "PET_NNODES='0': expects a number from 1 to 65536", HINT),
        (
            {"PET_NNODES": "1:4"},
            "PET_NNODES='1:4': a range of nodes, which only torchrun's elastic mode can use",
            "set PET_NNODES to one number",
        ),
        ({"PET_NODE_RANK": "-1"}, "PET_NODE_RANK='-1': expects a number", HINT),
        (
            {"PET_NNODES": "2", "JOB_COMPLETION_INDEX": "2"},
            "JOB_COMPLETION_INDEX='2': there are 2 nodes (PET_NNODES), their ranks are 0 to 1",
            HINT,
        ),
        ({"PET_NPROC_PER_NODE": "all"}, "PET_NPROC_PER_NODE='all': expects a number", HINT),
        ({"PET_MASTER_ADDR": "a b"}, "PET_MASTER_ADDR='a b': host name 'a b' holds ' '", HINT),
        ({"PET_MASTER_PORT": "99999"}, "PET_MASTER_PORT='99999': expects a number from 1 to 65535", HINT),
    ],
)
def test_errors_name_variable_value_and_next_action(environ: dict[str, str], what: str, hint: str) -> None:
    with pytest.raises(TopologyError) as refused:
        find_pod(environ)
    assert str(refused.value) == what
    assert refused.value.hint == hint


VARIABLES = (
    *("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    *("JOB_COMPLETION_INDEX", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
)


@given(
    st.dictionaries(st.sampled_from(VARIABLES), st.text("019:-.a \u0664", max_size=6) | st.text(max_size=6))
)
def test_anything_is_a_pod_or_a_topology_error(environ: dict[str, str]) -> None:
    with contextlib.suppress(TopologyError):
        pod = find_pod(environ)
        assert pod is None or pod.num_nodes is None or (pod.node_rank or 0) < pod.num_nodes
