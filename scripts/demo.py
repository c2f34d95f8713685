"""The main job, shown: two SSH hosts inside this process, and a GPT trained on them by the dslaunch command.

Exits 0 when the job ran on both hosts, its loss fell below `LOSS_BOUND` and it went on from its checkpoint.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dslaunch.launcher import devices
from dslaunch.runner_backends.embedded import EmbeddedHosts, running_hosts

ROOT = Path(__file__).resolve().parent.parent
DSLAUNCH = Path(sys.executable).parent / "dslaunch"
TRAINING = ("examples/gpt/train.py", "--deepspeed_config", "examples/gpt/ds_config.json")
SAVE_DIR = Path("runs/demo")
NUM_HOSTS, NUM_RANKS_A_HOST = 2, 2
NUM_STEPS, NUM_RESUMED_STEPS = 120, 5
LOSS_BOUND = 3.0

# Each rank computes on one thread: PyTorch would give every rank a thread per core, and four ranks on two
# cores then wait for each other more than they compute. It travels in an env file, as .deepspeed_env does.
ENV_FILE = "OMP_NUM_THREADS=1\n"

_MEETING = re.compile(
    r"dslaunch: (.*) meet at \S+ \(hosts answered after ([\d.]+) s, ranks started after ([\d.]+) s\)"
)
_STEP = re.compile(r"\bstep (\d+)/\d+  loss (\S+)  ([\d,]+) tokens/s")
_VALIDATION = re.compile(r"\bvalidation loss (\S+)")
_ENGINE = re.compile(r"\bdslaunch engine, (.+)")


class DemoError(Exception):
    """What did not come out as it should."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(frozen=True, slots=True)
class StepLine:
    """A progress line of rank 0."""

    step: int
    loss: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Meeting:
    """The launcher's line that all ranks have started. Its own two times count from its main()."""

    world: str
    at_s: float
    hosts_answered_s: float
    ranks_started_s: float


@dataclass(slots=True)
class Watch:
    """What the lines of one training run tell, and when they came: seconds from the start of the command."""

    meeting: Meeting | None = None
    first_rank_line_s: float = 0.0
    first_step_s: float = 0.0
    end_s: float = 0.0
    engine: str = ""
    steps: list[StepLine] = field(default_factory=list)
    validation_loss: float = float("nan")
    resumed: bool = False

    def see(self, line: str, at_s: float) -> None:
        """Take note of one line of the job's output."""
        self.end_s = at_s
        if not line.startswith("dslaunch: "):
            self.first_rank_line_s = self.first_rank_line_s or at_s
        if found := _MEETING.match(line):
            self.meeting = Meeting(found[1], at_s, float(found[2]), float(found[3]))
        elif found := _STEP.search(line):
            self.steps.append(StepLine(int(found[1]), float(found[2]), float(found[3].replace(",", ""))))
            self.first_step_s = self.first_step_s or at_s
        elif found := _VALIDATION.search(line):
            self.validation_loss = float(found[1])
        elif found := _ENGINE.search(line):
            self.engine = found[1]
        elif "resumed from" in line:
            self.resumed = True


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts as the command line names them."""

    options: tuple[str, ...]
    environ: Mapping[str, str]

    def command(self, *words: str) -> list[str]:
        """The dslaunch command with `words` behind the options that name the hosts."""
        return [str(DSLAUNCH), *self.options, *words]


def main() -> int:
    os.chdir(ROOT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    slots = _gpu_slots()
    try:
        with tempfile.TemporaryDirectory(prefix="dslaunch-demo-") as folder:
            num_slots = max([*slots, NUM_RANKS_A_HOST - 1]) + 1
            with running_hosts(Path(folder), NUM_HOSTS, num_slots=num_slots) as served:
                _demonstrate(_cluster(Path(folder), served.hosts, slots))
    except DemoError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        print("\nstopped; nothing is left running", file=sys.stderr)
        return 128 + interrupted.number
    return 0


def _demonstrate(cluster: Cluster) -> None:
    started_at = time.monotonic()
    shutil.rmtree(SAVE_DIR, ignore_errors=True)
    _title("What would run (--dry_run)")
    command = cluster.command("--dry_run", *TRAINING)
    _show(command)
    if subprocess.run(command, env=cluster.environ).returncode != 0:
        raise DemoError("the dry run failed")

    _title("Training over SSH")
    save = ("--save_dir", str(SAVE_DIR))
    trained = _train(cluster, *save, "--steps", str(NUM_STEPS))
    last_loss = trained.steps[-1].loss
    if not last_loss < LOSS_BOUND:
        raise DemoError(f"the loss ended at {last_loss}, not below {LOSS_BOUND}")

    _title("Going on from the checkpoint")
    until = str(NUM_STEPS + NUM_RESUMED_STEPS)
    resumed = _train(cluster, *save, "--resume", "--steps", until, "--log_every", "1")
    first = resumed.steps[0]
    if not resumed.resumed or first.step != NUM_STEPS + 1 or not first.loss < LOSS_BOUND:
        raise DemoError(f"the resumed run began with step {first.step} at loss {first.loss}")
    _summarize(trained, resumed, time.monotonic() - started_at)


def _train(cluster: Cluster, *arguments: str) -> Watch:
    """Run the training job, show what it says, and return what was seen. DemoError where it fails."""
    command = cluster.command(*TRAINING, *arguments)
    _show(command)
    watch = Watch()
    start = time.monotonic()
    # A session of its own: the terminal's Ctrl-C reaches this process alone, which passes it on once.
    process = subprocess.Popen(
        command,
        env=cluster.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _follow(process, watch, start)
    finally:
        while process.poll() is None:
            try:
                process.send_signal(signal.SIGINT)
                _follow(process, Watch(), start)
            except Interrupted:
                continue  # another one for the job
    if process.returncode != 0:
        raise DemoError(f"the training job exited with {process.returncode}")
    if not watch.steps or watch.meeting is None or not watch.engine:
        raise DemoError("the training job did not say how it went")
    return watch


def _follow(process: subprocess.Popen[str], watch: Watch, start: float) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        watch.see(line, time.monotonic() - start)
        print(line, end="", flush=True)
    process.wait()


def _cluster(folder: Path, hosts: EmbeddedHosts, slots: Sequence[int]) -> Cluster:
    env_file = folder / "deepspeed_env"
    env_file.write_text(ENV_FILE)
    options = ["--hostfile", str(hosts.hostfile), "--ssh_config", str(hosts.ssh_config), "--grace", "5"]
    if slots:
        options += ["--include", _share_out(slots, hosts.names)]
    return Cluster(tuple(options), {**os.environ, "DS_ENV_FILE": str(env_file), "PWD": str(ROOT)})


def _gpu_slots() -> list[int]:
    """The GPUs to train on, none where PyTorch sees none: both hosts are this machine, so they share them."""
    if devices.count().num_devices == 0:
        return []
    probe = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    num_gpus = int(subprocess.run(probe, check=True, capture_output=True, text=True).stdout)
    visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    slots = (
        [int(word) for word in visible] if all(map(str.isdecimal, visible)) and visible else range(num_gpus)
    )
    return list(slots)[: min(num_gpus, NUM_HOSTS * NUM_RANKS_A_HOST)]


def _share_out(slots: Sequence[int], names: Sequence[str]) -> str:
    """An --include that gives every host its own part of the GPUs, which NCCL insists on.

    One GPU is one rank on one host; of three, two are used.
    """
    if len(slots) == 1:
        print("this machine has one GPU, and NCCL takes one rank a GPU: the job is one rank on one host")
        return f"{names[0]}:{slots[0]}"
    share = len(slots) // len(names)
    parts = [slots[i * share : (i + 1) * share] for i in range(len(names))]
    return "@".join(f"{name}:{','.join(map(str, part))}" for name, part in zip(names, parts, strict=True))


def _summarize(trained: Watch, resumed: Watch, took_s: float) -> None:
    assert trained.meeting is not None
    _title("Summary")
    first, last = trained.steps[0], trained.steps[-1]
    speed = statistics.median(line.tokens_per_s for line in trained.steps[1:])
    print(f"world       {trained.meeting.world}")
    print(f"engine      {trained.engine}")
    print(f"loss        {first.loss:.3f} at step {first.step}, {last.loss:.3f} at step {last.step}")
    print(f"            {trained.validation_loss:.3f} on files the model has not seen")
    print(f"speed       {speed:,.0f} tokens/s")
    print(f"checkpoint  {SAVE_DIR / (SAVE_DIR / 'latest').read_text().strip()}")
    print(f"resumed     step {resumed.steps[0].step} at loss {resumed.steps[0].loss:.3f}")
    print("start       phase                   took      at")
    before_s = 0.0
    for name, over_s in _phases(trained, trained.meeting):
        print(f"            {name:<20} {max(0.0, over_s - before_s):5.2f} s {over_s:6.2f} s")
        before_s = over_s
    print(f"job         {trained.end_s:.1f} s; the whole demo {took_s:.1f} s")


def _phases(watch: Watch, meeting: Meeting) -> list[tuple[str, float]]:
    """The phases of the start, each with the second at which it was over."""
    # What came before the launcher's main() is the interpreter and its imports.
    before_main_s = max(0.0, meeting.at_s - meeting.ranks_started_s)
    return [
        ("launcher started", before_main_s),
        ("hosts answered", before_main_s + meeting.hosts_answered_s),
        ("ranks started", before_main_s + meeting.ranks_started_s),
        ("first line of a rank", watch.first_rank_line_s),
        ("first step", watch.first_step_s),
    ]


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _show(command: Sequence[str]) -> None:
    print(f"$ {shlex.join(['dslaunch', *command[1:]])}", flush=True)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
