"""What a scheduler says about this job, as text, to a Topology: Slurm, PBS and Torque, LSF.

Schedulers count different things. Slots here are GPUs where the scheduler tells how many each host has,
and else the tasks, processes or slots that were asked for. They are numbered from 0 on every host:
schedulers that hand out part of a host's devices renumber them for the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dslaunch.hostfile.address import parse_name
from dslaunch.hostfile.errors import TopologyError, quoted
from dslaunch.hostfile.parse import MAX_SLOTS
from dslaunch.hostfile.ranges import expand_indices, expand_name_list
from dslaunch.hostfile.topology import Host, Topology
from dslaunch.hostfile.variables import Variable, find_variable

_HINT = "correct or unset it, or name the hosts with --hostfile"
_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)
_GPUS = re.compile(r"(?:[^:,]+:)*(\d{1,9})(?:\([^()]*\))?", re.ASCII)
_LSF_GPUS = re.compile(r"ngpus_physical=(\d{1,9})(?:\.0+)?(?=[:,\]\s])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The hosts a scheduler gave this job. `scheduler` is "slurm", "pbs" or "lsf"."""

    scheduler: str
    topology: Topology


def find_allocation(environ: Mapping[str, str], read: Callable[[str], str]) -> Allocation | None:
    """The allocation this process runs in, from the scheduler's variables; None where there is none.

    `read` gives the text of a file named by a variable; its OSError is reported as a TopologyError.
    Raises TopologyError, naming the variable, for what cannot be read or contradicts itself.
    """
    if nodes := find_variable(environ, "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        return Allocation("slurm", _slurm(nodes, environ))
    if nodes := find_variable(environ, "PBS_NODEFILE"):
        return Allocation("pbs", _pbs(nodes, environ, read))
    if nodes := find_variable(environ, "LSB_MCPU_HOSTS"):
        return Allocation("lsf", _lsf(nodes, environ))
    return None


# -- Slurm (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES")


def _slurm(nodes: Variable, environ: Mapping[str, str]) -> Topology:
    try:
        names = [parse_name(name) for name in expand_name_list(nodes.value.strip())]
    except TopologyError as error:
        raise nodes.refused(error.what, _HINT) from None
    return _topology(nodes, zip(names, _slurm_slots(environ, len(names)), strict=True))


def _slurm_slots(environ: Mapping[str, str], num_nodes: int) -> list[int]:
    """Slots of each node: GPUs before tasks, what was asked of every node before what this node has."""
    if (asked := find_variable(environ, "SLURM_GPUS_PER_NODE")) and (num_gpus := _gpu_count(asked)):
        return [num_gpus] * num_nodes
    if num_gpus := _gpus_of_this_node(environ):
        total = find_variable(environ, "SLURM_GPUS")
        if total and _gpu_count(total) != num_gpus * num_nodes:
            raise total.refused(
                f"not {num_gpus} on each of {num_nodes} nodes, and Slurm does not tell where the others are",
                "ask for --gpus-per-node=N, or name the hosts and slots with --hostfile",
            )
        return [num_gpus] * num_nodes
    if tasks := find_variable(environ, "SLURM_TASKS_PER_NODE"):
        return _tasks(tasks, num_nodes)
    if tasks := find_variable(environ, "SLURM_NTASKS_PER_NODE"):
        return [tasks.number(1, MAX_SLOTS, _HINT)] * num_nodes
    raise TopologyError(
        "Slurm does not tell how many slots a node has",
        "ask for --gpus-per-node=N or --ntasks-per-node=N, or name the hosts and slots with --hostfile",
    )


def _gpus_of_this_node(environ: Mapping[str, str]) -> int:
    if count := find_variable(environ, "SLURM_GPUS_ON_NODE"):
        return _gpu_count(count)
    indices = find_variable(environ, "SLURM_JOB_GPUS")
    if indices is None:
        return 0
    try:
        return len(expand_indices(indices.value))
    except TopologyError as error:
        raise indices.refused(error.what, _HINT) from None


def _gpu_count(variable: Variable) -> int:
    """`8`, `gpu:8`, `a100:4`, `a100:2,v100:2`: how many in all."""
    counts = [_GPUS.fullmatch(part.strip()) for part in variable.value.split(",")]
    numbers = [int(match[1]) for match in counts if match is not None]
    if len(numbers) < len(counts):
        raise variable.refused("expects a number of GPUs, as in 8, gpu:8 or a100:4", _HINT)
    return sum(numbers)


def _tasks(variable: Variable, num_nodes: int) -> list[int]:
    """`2(x3),1` is 2, 2, 2, 1."""
    tasks: list[int] = []
    for part in variable.value.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            raise variable.refused("expects numbers of tasks, as in 2(x3),1", _HINT)
        num_repeats = int(match[2] or 1)
        if len(tasks) + num_repeats > num_nodes:
            raise variable.refused(f"speaks of more than the {num_nodes} nodes of the job", _HINT)
        tasks += [int(match[1])] * num_repeats
    if len(tasks) < num_nodes:
        raise variable.refused(f"speaks of {len(tasks)} of the {num_nodes} nodes of the job", _HINT)
    return tasks


# -- PBS Pro and Torque (qsub(1B)): a file with a line for every process


def _pbs(nodes: Variable, environ: Mapping[str, str], read: Callable[[str], str]) -> Topology:
    try:
        text = read(nodes.value)
    except OSError as error:
        raise nodes.refused(f"cannot be read: {(error.strerror or str(error)).lower()}", _HINT) from error
    counts: dict[str, int] = {}
    for line_number, line in enumerate(text.split("\n"), start=1):
        name = line.strip()
        if len(name.split()) > 1:
            raise nodes.refused(f"line {line_number} is no host: {quoted(name)}", _HINT)
        if name:
            counts[name] = counts.get(name, 0) + 1
    if not counts:
        raise nodes.refused("no host in this file", _HINT)
    per_node = find_variable(environ, "PBS_NUM_PPN")
    if per_node and max(counts.values()) == 1:
        counts = dict.fromkeys(counts, per_node.number(1, MAX_SLOTS, _HINT))
    return _topology(nodes, counts.items())


# -- LSF (IBM Spectrum LSF, "Environment variables set for job execution")


def _lsf(nodes: Variable, environ: Mapping[str, str]) -> Topology:
    """`hostA 4 hostB 2`. LSF's slots are CPUs; where GPUs were asked for, they are counted instead.

    Under IBM CSM (CORAL machines, started by jsrun) the first host with its one slot is the launch node,
    which belongs to the batch script and is left out; elsewhere the first host computes like the others.
    """
    words = nodes.value.split()
    if len(words) % 2 or not all(word.isascii() and word.isdecimal() for word in words[1::2]):
        raise nodes.refused("expects hosts and numbers in turn, as in hostA 4 hostB 2", _HINT)
    pairs = [(name, int(number[:9])) for name, number in zip(words[::2], words[1::2], strict=True)]
    if find_variable(environ, "CSM_ALLOCATION_ID") and len(pairs) > 1 and pairs[0][1] == 1:
        del pairs[0]
    counts: dict[str, int] = {}
    for name, number in pairs:
        counts[name] = counts.get(name, 0) + number
    # One requirement for all hosts; a compound one ("1*{...} + 4*{...}") does not tell which host is which.
    gpus = _LSF_GPUS.findall(environ.get("LSB_EFFECTIVE_RSRCREQ", ""))
    if len(gpus) == 1 and int(gpus[0]):
        counts = dict.fromkeys(counts, int(gpus[0]))
    return _topology(nodes, counts.items())


def _topology(nodes: Variable, counts: Iterable[tuple[str, int]]) -> Topology:
    hosts: dict[str, Host] = {}
    for text, num_slots in counts:
        try:
            name = parse_name(text)
        except TopologyError as error:
            raise nodes.refused(error.what, _HINT) from None
        if name.lower() in hosts:
            raise nodes.refused(f"host {quoted(name)} is listed twice", _HINT)
        if not 1 <= num_slots <= MAX_SLOTS:
            raise nodes.refused(
                f"{num_slots} slots on host {quoted(name)}, where 1 to {MAX_SLOTS} are believed", _HINT
            )
        hosts[name.lower()] = Host(name, tuple(range(num_slots)))
    return Topology(tuple(hosts.values()))
