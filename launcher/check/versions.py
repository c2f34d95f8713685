"""Judge what is installed on the hosts, and the program they would run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dslaunch.launcher.check.host_answer import Asked, Finding, Severity, Told
from dslaunch.launcher.check.majority import deviations

_DIGEST_CHARS = 12
_OLDEST_DRIVER = {"11": 450, "12": 525, "13": 580}
"""Of a CUDA toolkit's major version (docs.nvidia.com/deploy/cuda-compatibility)."""


def judge_software(told: Sequence[Told]) -> Iterator[Finding]:
    """Whoever differs from the most."""
    error, warning = Severity.ERROR, Severity.WARNING
    yield from _compare(
        told,
        "Python",
        _minor,
        warning,
        lambda one, _: "name one that all have: --python, or python= in the hostfile",
    )
    yield from _compare(told, "torch", _package("torch"), error, _install("torch"))
    yield from _compare(told, "CUDA", _cuda, error, _reinstall_torch, if_alike=_package("torch"))
    yield from _compare(told, "NCCL", _package("nccl"), error, _reinstall_torch, if_alike=_package("torch"))
    yield from _compare(told, "dslaunch", _package("dslaunch"), warning, _install("dslaunch"))
    yield from _compare(
        told, "driver", _driver, warning, lambda one, _: "install the same driver on all hosts"
    )
    for one in told:
        cuda, driver = _cuda(one), _driver(one)
        oldest = _OLDEST_DRIVER.get(cuda.partition(".")[0])
        if oldest and driver and int(driver.partition(".")[0]) < oldest:
            yield Finding(
                error,
                (one.host,),
                f"driver {driver} is too old for CUDA {cuda}",
                f"install {oldest} or newer",
            )


def judge_program(asked: Asked, told: Sequence[Told]) -> Iterator[Finding]:
    """Folder and script, there and the same."""
    for one in told:
        program = one.answer.program
        if program.folder:
            yield Finding(
                Severity.ERROR,
                (one.host,),
                f"folder {asked.folder} {program.folder}",
                "create or mount it on this host, or choose another with --cwd",
            )
        elif program.script:
            yield Finding(
                Severity.ERROR,
                (one.host,),
                f"{asked.script} {program.script} in {asked.folder}",
                "copy it to this host, or use a shared folder",
            )
    there = [one for one in told if one.answer.program.digest]
    yield from _compare(
        there,
        f"another {asked.script} (SHA-256",
        lambda one: one.answer.program.digest[:_DIGEST_CHARS],
        Severity.ERROR,
        lambda one, _: "copy it to this host, or use a shared folder",
        end=")",
    )


Fact = Callable[[Told], str]
Remedy = Callable[[Told, str], str]


def _compare(
    told: Sequence[Told],
    name: str,
    fact: Fact,
    severity: Severity,
    remedy: Remedy,
    *,
    if_alike: Fact | None = None,
    end: str = "",
) -> Iterator[Finding]:
    """`remedy` is given the host and what others have; hosts that differ in `if_alike` are passed over."""
    by_name = {one.host: one for one in told}
    apart = (
        set()
        if if_alike is None
        else {host for host, _, _ in deviations({one.host: if_alike(one) for one in told})}
    )
    for host, value, others in deviations({one.host: fact(one) for one in told if one.host not in apart}):
        what = f"{name} {value}{end}, {others}" if value else f"no {name}, {others}"
        yield Finding(severity, (host,), what, remedy(by_name[host], others.rpartition(" ")[2]))


def _minor(one: Told) -> str:
    return ".".join(one.answer.software.python.split(".")[:2])


def _package(name: str) -> Fact:
    return lambda one: one.answer.software.packages.get(name, "")


def _cuda(one: Told) -> str:
    return one.answer.software.cuda


def _driver(one: Told) -> str:
    return one.answer.software.driver


def _install(package: str) -> Remedy:
    return lambda one, version: f"{one.answer.software.executable} -m pip install {package}=={version}"


def _reinstall_torch(one: Told, _: str) -> str:
    version = one.answer.software.packages.get("torch", "")
    return f"install torch {version} from where the others have it: pip install --force-reinstall"
