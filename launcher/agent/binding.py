"""`--bind_cores_to_rank`: which cores each rank of a node runs on, without numactl.

A core is the number of one logical CPU. Without a list, each physical core is stood for by its first CPU
that this process may run on: two ranks never share a core's arithmetic units.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
MAX_CORE = 65535
"""No machine has a CPU of a higher number."""


def parse_core_list(text: str) -> tuple[int, ...]:
    """The cores of DeepSpeed's `--bind_core_list`, as in `0,2-4,6,8-9`: ascending, without overlap.

    Raises ValueError, in DeepSpeed's words where it has some.
    """
    cores: list[int] = []
    for part in text.split(","):
        low, high = _bounds(part)
        if cores and low <= cores[-1]:
            raise ValueError(
                f"Bad range: '{text}', "
                "sub ranges must not overlap with each other and should be in ascend order"
            )
        cores.extend(range(low, high + 1))
    return tuple(cores)


def _bounds(part: str) -> tuple[int, int]:
    numbers = part.split("-")
    if len(numbers) > 2 or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(
            f"Bad range: '{part}', range must be either a number or two number separated by dash"
        )
    # Longer than MAX_CORE means above it, and int() balks at 4301 digits.
    low, high = int(numbers[0][-9:]), int(numbers[-1][-9:])
    if max(len(numbers[0].lstrip("0")), len(numbers[-1].lstrip("0"))) > 5 or max(low, high) > MAX_CORE:
        raise ValueError(f"Bad range: '{part}', there is no core above {MAX_CORE}")
    if low > high:
        raise ValueError(f"Bad range: '{part}', range end must larger than or equal to start")
    return low, high


def physical_cores(allowed: frozenset[int], root: str = "/") -> tuple[int, ...]:
    """One CPU of each physical core, of those `allowed`, ascending.

    https://docs.kernel.org/admin-guide/cputopology.html. Where the kernel tells no topology, as in some
    containers, every CPU counts as a core.
    """
    first_cpus = set()
    for cpu in sorted(allowed):
        folder = os.path.join(root, _CPUS, f"cpu{cpu}", "topology")
        siblings = _read_list(os.path.join(folder, "core_cpus_list")) or _read_list(
            os.path.join(folder, "thread_siblings_list")
        )
        first_cpus.add(min(allowed.intersection(siblings), default=cpu))
    return tuple(sorted(first_cpus))


def numa_nodes(root: str = "/") -> dict[int, frozenset[int]]:
    """The CPUs of each NUMA node that has some, by the node's number; empty where the kernel tells none."""
    folder = os.path.join(root, _NODES)
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    numbers = sorted(int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal())
    nodes = {number: _read_list(os.path.join(folder, f"node{number}", "cpulist")) for number in numbers}
    return {number: cpus for number, cpus in nodes.items() if cpus}


def assign(
    cores: Sequence[int], numa: Mapping[int, frozenset[int]], num_ranks: int
) -> tuple[tuple[int, ...], ...]:
    """The cores of each rank: equal shares, each within one NUMA node where one still holds a share.

    Ranks fill the first node, then the next; what the nodes have left over, less than a share each, is put
    together for the last ranks. Cores beyond the equal shares stay idle. Raises ValueError where there are
    fewer cores than ranks.
    """
    num_cores = len(cores) // num_ranks
    if num_cores < 1:
        raise ValueError(
            f"{len(cores)} {'core' if len(cores) == 1 else 'cores'} for {num_ranks} ranks: "
            "at least one core needs to be assigned to each rank"
        )
    node_of = {cpu: number for number, cpus in numa.items() for cpu in cpus}
    left: dict[int, list[int]] = {}
    for core in cores:
        left.setdefault(node_of.get(core, -1), []).append(core)
    shares = []
    for _ in range(num_ranks):
        node = next((node for node in sorted(left) if len(left[node]) >= num_cores), None)
        share = left[node][:num_cores] if node is not None else _leftovers(left)[:num_cores]
        left = {number: [core for core in rest if core not in share] for number, rest in left.items()}
        shares.append(tuple(share))
    return tuple(shares)


def _leftovers(left: Mapping[int, Sequence[int]]) -> list[int]:
    return [core for node in sorted(left) for core in left[node]]


def plan_binding(core_list: str, num_ranks: int, root: str = "/") -> tuple[tuple[int, ...], ...]:
    """The cores of each rank of this host, by local rank; "" is every physical core this process may use.

    Raises ValueError for a bad list, a core that this process may not use, or fewer cores than ranks.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    if not core_list:
        return assign(physical_cores(allowed, root), numa_nodes(root), num_ranks)
    cores = parse_core_list(core_list)
    missing = [core for core in cores if core not in allowed]
    if missing:
        raise ValueError(
            f"core {missing[0]} of '{core_list}' is not among those this process may use: {_ranges(allowed)}"
        )
    return assign(cores, numa_nodes(root), num_ranks)


def binding_environment(cores: Sequence[int]) -> dict[str, str]:
    """What a bound rank's environment gains: as many OpenMP threads as it has cores."""
    return {"OMP_NUM_THREADS": str(len(cores))}


def bind(cores: Sequence[int]) -> None:
    """For the child between fork and exec: run on these cores alone (sched_setaffinity(2))."""
    os.sched_setaffinity(0, cores)


def _read_list(path: str) -> frozenset[int]:
    """The kernel's `0-3,8`; empty where the file is missing or holds something else."""
    try:
        with open(path) as file:
            return frozenset(parse_core_list(file.read().strip()))
    except (OSError, ValueError):
        return frozenset()


def _ranges(cores: frozenset[int]) -> str:
    """The inverse of `parse_core_list`."""
    parts: list[str] = []
    run: list[int] = []
    for core in [*sorted(cores), None]:
        if run and core != run[-1] + 1:
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if core is not None:
            run.append(core)
    return ",".join(parts)
