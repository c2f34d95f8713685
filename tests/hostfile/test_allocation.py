"""What schedulers say, by example and word for word; and that nothing they say does worse than an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.hostfile import Allocation, Host, Topology, TopologyError, find_allocation, fold_names

HINT = "correct or unset it, or name the hosts with --hostfile"
FILES = {
    "/pbs": "n1\nn1\nn2\nn2\n",
    "/uneven": "n2\n\nn1\nn2\r\n",
    "/once": "n1\nn2\n",
    "/empty": "\n\n",
    "/odd": "n1\nn2 4\n",
}


def read(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path]


def slots_of(topology: Topology) -> str:
    """`n1:4 n2:2`, slots being counted from 0."""
    assert all(host.slots == tuple(range(len(host.slots))) for host in topology)
    return " ".join(f"{host.name}:{len(host.slots)}" for host in topology)


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_NODELIST": " "}, {"SLURM_JOB_ID": "7"}, {"PBS_NODEFILE": ""}]
)
def test_no_scheduler(environ: dict[str, str]) -> None:
    assert find_allocation(environ, read) is None


NODES = {"SLURM_JOB_NODELIST": "n[1-2],gpu5"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_GPUS_PER_NODE": "8"}, "n1:8 n2:8 gpu5:8"),
        ({"SLURM_GPUS_PER_NODE": "gpu:8"}, "n1:8 n2:8 gpu5:8"),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, "n1:4 n2:4 gpu5:4"),
        ({"SLURM_GPUS_PER_NODE": "gpu:a100:4(S:0-1)"}, "n1:4 n2:4 gpu5:4"),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, "n1:3 n2:3 gpu5:3"),
        ({"SLURM_GPUS_ON_NODE": "4"}, "n1:4 n2:4 gpu5:4"),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS": "h100:12"}, "n1:4 n2:4 gpu5:4"),
        ({"SLURM_JOB_GPUS": "2,3"}, "n1:2 n2:2 gpu5:2"),
        ({"SLURM_JOB_GPUS": "0-3"}, "n1:4 n2:4 gpu5:4"),
        # a task that drives eight GPUs is torchrun's way to ask
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_TASKS_PER_NODE": "1(x3)"}, "n1:8 n2:8 gpu5:8"),
        ({"SLURM_GPUS_PER_NODE": "0", "SLURM_TASKS_PER_NODE": "2(x3)"}, "n1:2 n2:2 gpu5:2"),
        ({"SLURM_TASKS_PER_NODE": "2(x2),1"}, "n1:2 n2:2 gpu5:1"),
        ({"SLURM_TASKS_PER_NODE": "3,2,1"}, "n1:3 n2:2 gpu5:1"),
        ({"SLURM_TASKS_PER_NODE": "2(x3)", "SLURM_NTASKS_PER_NODE": "4"}, "n1:2 n2:2 gpu5:2"),
        ({"SLURM_NTASKS_PER_NODE": "4"}, "n1:4 n2:4 gpu5:4"),
    ],
)
def test_slurm(environ: dict[str, str], expected: str) -> None:
    found = find_allocation({**NODES, **environ}, read)
    assert found is not None
    assert (found.scheduler, slots_of(found.topology)) == ("slurm", expected)


def test_slurms_list_in_full() -> None:
    environ = {"SLURM_NODELIST": "node[01-03,7],gpu5,rack[1-2]n[0-3]", "SLURM_GPUS_ON_NODE": "1"}
    found = find_allocation(environ, read)
    assert found is not None
    assert [host.name for host in found.topology] == [
        *("node01", "node02", "node03", "node7", "gpu5"),
        *("rack1n0", "rack1n1", "rack1n2", "rack1n3", "rack2n0", "rack2n1", "rack2n2", "rack2n3"),
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PBS_NODEFILE": "/pbs"}, "n1:2 n2:2"),
        ({"PBS_NODEFILE": "/pbs", "PBS_NUM_PPN": "8"}, "n1:2 n2:2"),
        ({"PBS_NODEFILE": "/uneven"}, "n2:2 n1:1"),
        ({"PBS_NODEFILE": "/once"}, "n1:1 n2:1"),
        ({"PBS_NODEFILE": "/once", "PBS_NUM_PPN": "8"}, "n1:8 n2:8"),
    ],
)
def test_pbs(environ: dict[str, str], expected: str) -> None:
    found = find_allocation(environ, read)
    assert found is not None
    assert (found.scheduler, slots_of(found.topology)) == ("pbs", expected)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LSB_MCPU_HOSTS": "hostA 4 hostB 2"}, "hostA:4 hostB:2"),
        ({"LSB_MCPU_HOSTS": "hostA 1 hostB 2 hostA 1 "}, "hostA:2 hostB:2"),
        ({"LSB_MCPU_HOSTS": "batch2 1 c1 42 c2 42"}, "batch2:1 c1:42 c2:42"),
        ({"LSB_MCPU_HOSTS": "batch2 1 c1 42 c2 42", "CSM_ALLOCATION_ID": "7"}, "c1:42 c2:42"),
        ({"LSB_MCPU_HOSTS": "c1 42 c2 42", "CSM_ALLOCATION_ID": "7"}, "c1:42 c2:42"),
        ({"LSB_MCPU_HOSTS": "c1 1", "CSM_ALLOCATION_ID": "7"}, "c1:1"),
        (
            {
                "LSB_MCPU_HOSTS": "hostA 64 hostB 64",
                "LSB_EFFECTIVE_RSRCREQ": "rusage[mem=9.00,ngpus_physical=8.00] span[ptile=64]",
            },
            "hostA:8 hostB:8",
        ),
        (
            {
                "LSB_MCPU_HOSTS": "hostA 1 hostB 4",
                "LSB_EFFECTIVE_RSRCREQ": "1*{rusage[ngpus_physical=2:mem=1]} + 4*{rusage[ngpus_physical=1]}",
            },
            "hostA:1 hostB:4",
        ),
    ],
)
def test_lsf(environ: dict[str, str], expected: str) -> None:
    found = find_allocation(environ, read)
    assert found is not None
    assert (found.scheduler, slots_of(found.topology)) == ("lsf", expected)


@pytest.mark.parametrize(
    ("environ", "what", "hint"),
    [
        (
            {"SLURM_JOB_NODELIST": "n[1-"},
            "SLURM_JOB_NODELIST='n[1-': unmatched bracket in 'n[1-'",
            HINT,
        ),
        (
            {"SLURM_JOB_NODELIST": "n[1-x]"},
            "SLURM_JOB_NODELIST='n[1-x]': expects a number or low-high, but got '1-x'",
            HINT,
        ),
        ({"SLURM_JOB_NODELIST": "n1,,n2"}, "SLURM_JOB_NODELIST='n1,,n2': empty host name", HINT),
        (
            {"SLURM_JOB_NODELIST": "n1,N1", "SLURM_GPUS_ON_NODE": "1"},
            "SLURM_JOB_NODELIST='n1,N1': host 'N1' is listed twice",
            HINT,
        ),
        ({"SLURM_JOB_NODELIST": "(null)"}, "SLURM_JOB_NODELIST='(null)': host name '(null)' holds '('", HINT),
        (
            {**NODES, "SLURM_GPUS_PER_NODE": "gpu:many"},
            "SLURM_GPUS_PER_NODE='gpu:many': expects a number of GPUs, as in 8, gpu:8 or a100:4",
            HINT,
        ),
        (
            {**NODES, "SLURM_JOB_GPUS": "0,x"},
            "SLURM_JOB_GPUS='0,x': expects a number or low-high, but got 'x' in '0,x'",
            HINT,
        ),
        (
            {**NODES, "SLURM_GPUS_ON_NODE": "3", "SLURM_GPUS": "8"},
            "SLURM_GPUS='8': not 3 on each of 3 nodes, and Slurm does not tell where the others are",
            "ask for --gpus-per-node=N, or name the hosts and slots with --hostfile",
        ),
        (
            {**NODES, "SLURM_GPUS_ON_NODE": "2000"},
            "SLURM_JOB_NODELIST='n[1-2],gpu5': 2000 slots on host 'n1', where 1 to 1024 are believed",
            HINT,
        ),
        (
            {**NODES, "SLURM_TASKS_PER_NODE": "2(x2)"},
            "SLURM_TASKS_PER_NODE='2(x2)': speaks of 2 of the 3 nodes of the job",
            HINT,
        ),
        (
            {**NODES, "SLURM_TASKS_PER_NODE": "2(x999999999)"},
            "SLURM_TASKS_PER_NODE='2(x999999999)': speaks of more than the 3 nodes of the job",
            HINT,
        ),
        (
            {**NODES, "SLURM_TASKS_PER_NODE": "2(x3"},
            "SLURM_TASKS_PER_NODE='2(x3': expects numbers of tasks, as in 2(x3),1",
            HINT,
        ),
        (
            {**NODES, "SLURM_TASKS_PER_NODE": "0(x3)"},
            "SLURM_JOB_NODELIST='n[1-2],gpu5': 0 slots on host 'n1', where 1 to 1024 are believed",
            HINT,
        ),
        (
            {**NODES, "SLURM_NTASKS_PER_NODE": "four"},
            "SLURM_NTASKS_PER_NODE='four': expects a number",
            HINT,
        ),
        (
            NODES,
            "Slurm does not tell how many slots a node has",
            "ask for --gpus-per-node=N or --ntasks-per-node=N, or name the hosts and slots with --hostfile",
        ),
        ({"PBS_NODEFILE": "/none"}, "PBS_NODEFILE='/none': cannot be read: no such file or directory", HINT),
        ({"PBS_NODEFILE": "/empty"}, "PBS_NODEFILE='/empty': no host in this file", HINT),
        ({"PBS_NODEFILE": "/odd"}, "PBS_NODEFILE='/odd': line 2 is no host: 'n2 4'", HINT),
        (
            {"PBS_NODEFILE": "/once", "PBS_NUM_PPN": "0"},
            "PBS_NUM_PPN='0': expects a number from 1 to 1024",
            HINT,
        ),
        (
            {"LSB_MCPU_HOSTS": "hostA 4 hostB"},
            "LSB_MCPU_HOSTS='hostA 4 hostB': expects hosts and numbers in turn, as in hostA 4 hostB 2",
            HINT,
        ),
        (
            {"LSB_MCPU_HOSTS": "hostA hostB"},
            "LSB_MCPU_HOSTS='hostA hostB': expects hosts and numbers in turn, as in hostA 4 hostB 2",
            HINT,
        ),
        ({"LSB_MCPU_HOSTS": "-x 4"}, "LSB_MCPU_HOSTS='-x 4': host '-x' looks like an option", HINT),
    ],
)
def test_errors_name_variable_value_and_next_action(environ: dict[str, str], what: str, hint: str) -> None:
    with pytest.raises(TopologyError) as refused:
        find_allocation(environ, read)
    assert str(refused.value) == what
    assert refused.value.hint == hint


host_names = st.from_regex(r"[a-z]{1,3}[0-9]{1,3}(-ib)?", fullmatch=True)


@given(
    st.lists(
        st.tuples(host_names, st.integers(1, 9)), min_size=1, max_size=20, unique_by=lambda pair: pair[0]
    )
)
def test_every_scheduler_says_the_same(hosts: list[tuple[str, int]]) -> None:
    wanted = tuple(Host(name, tuple(range(num_slots))) for name, num_slots in hosts)
    slurm = {
        "SLURM_JOB_NODELIST": ",".join(name for name, _ in hosts),
        "SLURM_TASKS_PER_NODE": ",".join(str(num_slots) for _, num_slots in hosts),
    }
    lsf = {"LSB_MCPU_HOSTS": " ".join(f"{name} {num_slots}" for name, num_slots in hosts)}
    lines = "".join(f"{name}\n" * num_slots for name, num_slots in hosts)
    for environ in (slurm, lsf, {"PBS_NODEFILE": "/file"}):
        found = find_allocation(environ, lambda _: lines)
        assert found is not None
        assert found.topology.hosts == wanted


@given(st.lists(host_names, min_size=1, max_size=30, unique=True))
def test_a_folded_node_list_is_the_same_allocation(hosts: list[str]) -> None:
    environ = {"SLURM_JOB_NODELIST": fold_names(hosts), "SLURM_GPUS_ON_NODE": "8"}
    found = find_allocation(environ, read)
    assert found is not None
    assert sorted(host.name for host in found.topology) == sorted(hosts)


def outcome(attempt: Callable[[], Allocation | None]) -> Allocation | TopologyError | None:
    """What an attempt comes to; any other exception passes and fails the test."""
    try:
        return attempt()
    except TopologyError as error:
        return error


VARIABLES = (
    *("SLURM_JOB_NODELIST", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_GPUS"),
    *("SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "PBS_NODEFILE", "PBS_NUM_PPN", "LSB_MCPU_HOSTS"),
    *("LSB_EFFECTIVE_RSRCREQ", "CSM_ALLOCATION_ID"),
)
values = st.text("n019-[],():x \ngpu=\u0664", max_size=20) | st.text(max_size=10)


@given(st.dictionaries(st.sampled_from(VARIABLES), values), values)
def test_anything_is_an_allocation_or_a_topology_error(environ: dict[str, str], lines: str) -> None:
    match outcome(lambda: find_allocation(environ, lambda _: lines)):
        case TopologyError() as error:
            assert str(error).isprintable()
            assert error.hint
        case found:
            assert found is None or all(host.slots for host in found.topology)
