"""Answers of a healthy cluster, for tests to break."""

from dslaunch.launcher.check.host_answer import Asked, HostAnswer
from dslaunch.launcher.clock_offset import ClockOffset
from dslaunch.launcher.survey.records import (
    ANY_PORT,
    MASTER_PORT,
    NEXT_HOST,
    Answer,
    Call,
    Devices,
    Gpu,
    Interface,
    Machine,
    Network,
    Program,
    Software,
    Space,
)
from dslaunch.launcher.wire import Ready

GIB = 1 << 30
ASKED = Asked(port=29500, folder="/work", script="train.py")
SLOTS = (0, 1)


def answer(place: int, num_hosts: int) -> Answer:
    """One host's, where nothing is wrong."""
    calls = [] if place == 0 else [Call(MASTER_PORT, "10.0.0.1", "eth0", 29500, "")]
    calls += [] if place == 0 else [Call(ANY_PORT, "10.0.0.1", "eth0", 40000, "")]
    if 0 < place < num_hosts - 1:
        calls.append(Call(NEXT_HOST, f"10.0.0.{place + 2}", "eth0", 40000, ""))
    address = f"10.0.0.{place + 1}"
    return Answer(
        software=Software(
            "3.12.3", "/venv/bin/python", {"torch": "2.13.0", "nccl": "2.28.9"}, "13.0", "580.95.05"
        ),
        program=Program(digest="ab" * 32),
        devices=Devices(
            "cuda", 2, tuple(Gpu(i, "H200", 140 * GIB, 0, ()) for i in SLOTS), links=(("mlx5_0/1", "ACTIVE"),)
        ),
        machine=Machine(
            spaces=(
                Space("/dev/shm", "/dev/shm", 500 * GIB, 499 * GIB - place, 10**6),
                Space("the folder", "/work", 9000 * GIB, 4000 * GIB, -1),
                Space("temporary files", "/tmp", 900 * GIB, 400 * GIB, 10**6),
            ),
            memlock_bytes=-1,
            num_files=1048576,
            somaxconn=4096,
            memory_bytes=1000 * GIB,
        ),
        network=Network(
            hostname=f"worker-{place}",
            own_address=address,
            master_address="10.0.0.1",
            interfaces=(Interface("lo", "127.0.0.1", 65536, -1), Interface("eth0", address, 9000, 100_000)),
            calls=tuple(calls),
        ),
    )


def host(place: int, num_hosts: int) -> HostAnswer:
    ready = Ready(f"worker-{place}", 7, "3.12.3", (f"10.0.0.{place + 1}",), ("eth0",), False, 40000, 40001)
    return HostAnswer(
        f"worker-{place}", SLOTS, ready, answer(place, num_hosts), answered_s=0.2, clock=ClockOffset(0, 10**6)
    )


def healthy(num_hosts: int) -> list[HostAnswer]:
    return [host(place, num_hosts) for place in range(num_hosts)]
