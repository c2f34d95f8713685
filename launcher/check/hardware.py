"""Judge devices, room and limits of the hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dslaunch.launcher.check.host_answer import Asked, Finding, Severity, Told
from dslaunch.launcher.check.majority import usual
from dslaunch.launcher.survey.records import Gpu, Holder, Space

_GIB = 1 << 30
_MIB = 1 << 20
_BUSY_BYTES = _GIB
_MUCH = 0.25
"""Of a device's memory: with less in use, as by a desktop, training may still fit."""
_HELD_BYTES = 256 * _MIB
_DAEMONS = (
    "nvidia-persistenced",
    "nv-hostengine",
    "nv-fabricmanager",
    "dcgm",
    "nvidia-smi",
    "nvtop",
    "Xorg",
    "gnome-shell",
)
"""They have devices open on healthy hosts."""
_SHM_BYTES = _GIB
_SHM_FREE_BYTES = 512 * _MIB
_DISK_FREE_BYTES = _GIB
_DISK_FULL_BYTES = 64 * _MIB
_FEW_INODES = 1000
_RDMA_MEMLOCK_BYTES = 64 * _MIB
_FEW_FILES = 1024
_MEMORY_SHARE = 0.9


def judge_devices(asked: Asked, told: Sequence[Told]) -> Iterator[Finding]:
    """Number against slots, who holds them, and their health."""
    expected = asked.accelerator not in ("auto", "cpu") or any(one.answer.devices.num_devices for one in told)
    for one in told:
        devices = one.answer.devices
        needed = max(one.slots, default=-1) + 1
        if (
            expected
            and asked.accelerator != "cpu"
            and "devices" not in one.answer.unknown
            and devices.num_devices < needed
        ):
            number = (
                f"{devices.num_devices or 'no'} {devices.kind if devices.num_devices else ''} device".replace(
                    "  ", " "
                )
            )
            yield _error(
                one,
                f"{number}{'' if devices.num_devices == 1 else 's'} for {needed} slots",
                "correct slots= in the hostfile, or look why the driver misses a device (nvidia-smi, dmesg)",
            )
        for gpu in devices.gpus:
            if gpu.device in one.slots:
                yield from _judge_gpu(one, gpu)
        for xid in devices.xids:
            yield _warning(
                one, xid, f"look it up in NVIDIA's list of Xids; --exclude {one.host} until it is well"
            )
        if one.answer.machine.memory_errors:
            yield _error(
                one,
                f"{one.answer.machine.memory_errors} uncorrected errors of its memory since it was booted",
                f"have its memory tested; --exclude {one.host} until then",
            )
    yield from _judge_links(told)


def _judge_gpu(one: Told, gpu: Gpu) -> Iterator[Finding]:
    for trouble in gpu.troubles:
        severity = Severity.WARNING if "slowed down" in trouble else Severity.ERROR
        remedy = (
            "look at its cooling and power"
            if "slowed down" in trouble
            else "reset it: nvidia-smi --gpu-reset, or boot the host"
        )
        yield Finding(severity, (one.host,), f"device {gpu.device}: {trouble}", remedy)
    holders = [
        holder
        for holder in one.answer.devices.holders
        if holder.device == gpu.device and not _is_daemon(holder)
    ]
    users = [holder for holder in holders if holder.used_bytes >= _HELD_BYTES]
    if not users and gpu.used_bytes < _BUSY_BYTES:
        return
    named = users or holders
    used = f"{_size(gpu.used_bytes)} of {_size(gpu.memory_bytes)}"
    who = ", ".join(f"pid {holder.pid} ({holder.command})" for holder in named)
    kill = f"end it, if it is yours: ssh {one.host} kill {' '.join(str(holder.pid) for holder in named)}"
    look = "look for it on the host itself, or in its other containers"
    what = f"device {gpu.device} is in use, {used}: {who or 'by whom cannot be seen'}"
    severity = Severity.ERROR if gpu.used_bytes > _MUCH * gpu.memory_bytes else Severity.WARNING
    yield Finding(severity, (one.host,), what, kill if who else look)


def _is_daemon(holder: Holder) -> bool:
    program = holder.command.partition(" ")[0].rpartition("/")[2]
    return program.startswith(_DAEMONS)


def _judge_links(told: Sequence[Told]) -> Iterator[Finding]:
    """RDMA ports that do not work; one that works nowhere is not connected on purpose."""
    active = {name for one in told for name, state in one.answer.devices.links if state == "ACTIVE"}
    for one in told:
        for name, state in one.answer.devices.links:
            if state != "ACTIVE" and name in active:
                yield _warning(
                    one, f"RDMA port {name} is {state}", "look at its cable and the switch: ibstat"
                )


def judge_room(told: Sequence[Told]) -> Iterator[Finding]:
    """File systems that are full, or soon will be."""
    for one in told:
        seen = set()
        for space in one.answer.machine.spaces:
            if (space.total_bytes, space.free_bytes) not in seen:
                seen.add((space.total_bytes, space.free_bytes))
                yield from _judge_shm(one, space) if space.purpose == "/dev/shm" else _judge_disk(one, space)


def _judge_shm(one: Told, space: Space) -> Iterator[Finding]:
    if space.total_bytes < _SHM_BYTES and len(one.slots) > 1:
        yield _warning(
            one,
            f"/dev/shm has room for {_size(space.total_bytes)} only; NCCL and data loaders use it",
            "mount -o remount,size=50% /dev/shm; docker run --shm-size=16g; in a pod an emptyDir in memory",
        )
    elif space.free_bytes < min(_SHM_FREE_BYTES, space.total_bytes // 2):
        yield _warning(
            one,
            f"/dev/shm is nearly full: {_size(space.free_bytes)} of {_size(space.total_bytes)} left",
            f"delete what dead jobs left there: ssh {one.host} ls -lt /dev/shm",
        )


def _judge_disk(one: Told, space: Space) -> Iterator[Finding]:
    remedy = "delete something, or choose another folder: " + (
        "TMPDIR" if space.purpose == "temporary files" else "--cwd"
    )
    if 0 <= space.free_inodes < _FEW_INODES:
        yield _error(
            one, f"{space.path} ({space.purpose}) has room for {space.free_inodes} more files", remedy
        )
    elif space.free_bytes < _DISK_FREE_BYTES:
        severity = Severity.ERROR if space.free_bytes < _DISK_FULL_BYTES else Severity.WARNING
        what = (
            f"{space.path} ({space.purpose}) has {_size(space.free_bytes)} of {_size(space.total_bytes)} left"
        )
        yield Finding(severity, (one.host,), what, remedy)


def judge_limits(told: Sequence[Told], num_ranks: int) -> Iterator[Finding]:
    """Limits that ranks would inherit, where they are too low, or lower than on most hosts."""
    locked = usual({one.host: one.answer.machine.memlock_bytes for one in told})
    files = usual({one.host: one.answer.machine.num_files for one in told})
    for one in told:
        machine = one.answer.machine
        alike = {other.host: other for other in told if len(other.slots) == len(one.slots)}
        memory = usual({host: other.answer.machine.memory_bytes // _GIB for host, other in alike.items()})
        if "machine" in one.answer.unknown:
            continue
        least = _RDMA_MEMLOCK_BYTES if one.answer.devices.links else 0
        if _is_below(machine.memlock_bytes, locked) or 0 <= machine.memlock_bytes < least:
            yield _warning(
                one,
                f"may lock {_size(machine.memlock_bytes)} of memory{_others(machine.memlock_bytes, locked)}",
                '"* - memlock unlimited" in /etc/security/limits.d/, LimitMEMLOCK=infinity for sshd and '
                "slurmd, --ulimit memlock=-1 for docker",
            )
        if _is_below(machine.num_files, files) or 0 <= machine.num_files < _FEW_FILES:
            yield _warning(
                one,
                f"may open {machine.num_files} files{_others(machine.num_files, files, is_size=False)}",
                '"* - nofile 1048576" in /etc/security/limits.d/, --ulimit nofile=1048576 for docker',
            )
        if memory and machine.memory_bytes // _GIB < _MEMORY_SHARE * memory:
            yield _warning(
                one,
                f"{_size(machine.memory_bytes)} of memory, most hosts like it have {memory} GiB",
                "look for a memory module that failed, or a limit of its container",
            )
    if told and 0 <= told[0].answer.machine.somaxconn < num_ranks:
        yield _warning(
            told[0],
            f"net.core.somaxconn is {told[0].answer.machine.somaxconn}, and {num_ranks} ranks call at once",
            f"sysctl -w net.core.somaxconn={max(4096, num_ranks)}",
        )


def _is_below(value: int, most: int | None) -> bool:
    """-1 is without limit."""
    return most is not None and value != -1 and (most == -1 or value < most)


def _others(value: int, most: int | None, *, is_size: bool = True) -> str:
    if most is None or not _is_below(value, most):
        return ""
    return f", most hosts have {'no limit' if most == -1 else _size(most) if is_size else most}"


def _size(num_bytes: int) -> str:
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (1024, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{num_bytes} bytes"


def _error(one: Told, what: str, remedy: str) -> Finding:
    return Finding(Severity.ERROR, (one.host,), what, remedy)


def _warning(one: Told, what: str, remedy: str) -> Finding:
    return Finding(Severity.WARNING, (one.host,), what, remedy)
