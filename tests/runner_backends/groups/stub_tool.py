"""Stands in for pdsh, srun or mpirun: reads the same command line, and runs one process per host right here.

It labels output, cuts lines and passes stdin on as the real one was seen to. The hosts' names are in
STUB_HOST. It is run under the tool's name; mpirun's kind is in STUB_MPI: openmpi4, openmpi5, mpich or impi.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from dataclasses import dataclass, field

VERSIONS = {
    "openmpi4": "mpirun (Open MPI) 4.1.4",
    "openmpi5": "mpirun (Open MPI) 5.0.11",
    "mpich": "HYDRA build details:\n    Version:    4.0.2",
    "impi": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1",
}
FLAGS = {"-S", "--label", "--allow-run-as-root", "--tag-output", "-disable-auto-cleanup"}
PAIRS = {
    *("-f", "-w", "-n", "-ppn", "-hosts", "-prepend-pattern", "-s", "--host", "--map-by", "--bind-to"),
    *("--stdin", "--output", "--runtime-options", "--prtemca", "--mca"),
}


@dataclass
class Order:
    """The command line, read."""

    options: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)


def read(argv: list[str]) -> Order:
    order = Order()
    while argv and argv[0].startswith("-"):
        word = argv.pop(0)
        if word in FLAGS:
            order.options[word] = ""
        elif word.startswith("--") and "=" in word:
            name, _, value = word.partition("=")
            order.options[name] = value
        elif word in PAIRS:
            value = argv.pop(0)
            order.options[word] = value if word not in ("--mca", "--prtemca") else argv.pop(0)
        else:
            sys.exit(f"stub: unknown option {word}")
    if ":" in argv:
        sys.exit("stub: one program is enough")
    order.command = argv
    return order


class Process:
    """One process of the job, and the label of its output."""

    def __init__(self, index: int, host: str, kind: str, order: Order) -> None:
        rank = {"srun": "SLURM_PROCID", "mpich": "PMI_RANK", "impi": "PMI_RANK", "pdsh": "STUB_RANK"}
        env = {**os.environ, "STUB_HOST": host, rank.get(kind, "OMPI_COMM_WORLD_RANK"): str(index)}
        command = order.command
        if kind == "pdsh":
            line = " ".join(command)
            words = line.split("%%")
            line = "%".join(w.replace("%n", str(index)).replace("%h", host).replace("%u", "u") for w in words)
            command = ["sh", "-c", line]
        self.kind = kind
        self.label = {
            "pdsh": f"{host}: ",
            "srun": f"{index}: ",
            "openmpi4": f"[1,{index}]<stdout>:",
            "openmpi5": f"[1,{index}]<stdout>: ",
        }.get(kind, order.options.get("-prepend-pattern", "").replace("%r", str(index))).encode()
        self.pending = b""
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def say(self, data: bytes) -> bytes:
        """What the tool prints for these bytes of stdout; none for the end."""
        if self.kind in ("pdsh", "openmpi5"):
            *lines, self.pending = (self.pending + data).split(b"\n")
            if not data and self.pending:
                lines.append(self.pending)
            return b"".join(self.label + line + b"\n" for line in lines)
        if self.kind == "srun":
            *lines, self.pending = (self.pending + data).split(b"\n")
            messages = []
            for line in lines if data else [*lines, self.pending]:
                whole = line + b"\n" if data else line
                messages += [whole[i : i + 1024].removesuffix(b"\n") for i in range(0, len(whole), 1024)]
            return b"".join(self.label + message + b"\n" for message in messages)
        cut = [data[i : i + 4096] for i in range(0, len(data), 4096)]
        return b"".join(self.label + line for piece in cut for line in piece.splitlines(keepends=True))


def main() -> int:
    tool = os.path.basename(sys.argv[0])
    kind = os.environ["STUB_MPI"] if tool == "mpirun" else tool
    if sys.argv[1:] == ["--version"]:
        print(VERSIONS[kind])
        return 0
    order = read(sys.argv[1:])
    hosts = next(order.options[o] for o in ("-w", "--nodelist", "--host", "-hosts") if o in order.options)
    names = [name.removesuffix(":1").rpartition("@")[2] for name in hosts.split(",")]
    for name in names:
        if name.startswith("no-such"):
            sys.exit(f"{tool}: cannot find {name}")
    processes = [Process(i, name, kind, order) for i, name in enumerate(names)]
    signal.signal(signal.SIGTERM, lambda *_: end(kind, processes))
    pump(processes, kind in ("srun", "openmpi4", "impi"))
    return max(process.popen.wait() % 256 for process in processes)


def end(kind: str, processes: list[Process]) -> None:
    if kind == "pdsh":
        os._exit(143)  # its sockets close: the processes read EOF
    for process in processes:
        if kind == "openmpi5":
            hand_on(process, b"")
        process.popen.terminate()


def pump(processes: list[Process], takes_stdin: bool) -> None:
    selector = selectors.DefaultSelector()
    for process in processes:
        assert process.popen.stdout is not None
        selector.register(process.popen.stdout, selectors.EVENT_READ, process)
    if takes_stdin:
        selector.register(0, selectors.EVENT_READ, None)
    num_open = len(processes)
    while num_open:
        for key, _ in selector.select():
            data = os.read(key.fd, 65536)
            if key.data is not None:
                os.write(1, key.data.say(data))
            else:
                for process in processes:
                    hand_on(process, data)
            if not data:
                selector.unregister(key.fd)
                num_open -= key.data is not None


def hand_on(process: Process, data: bytes) -> None:
    pipe = process.popen.stdin
    assert pipe is not None
    try:
        if data:
            pipe.write(data)
            pipe.flush()
        else:
            pipe.close()
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    sys.exit(main())
