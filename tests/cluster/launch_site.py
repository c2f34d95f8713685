"""Two hosts and the command that launches on them, for the tests of this folder."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marked import living, living_after

ROOT = Path(__file__).parents[2]
PAYLOAD = str(ROOT / "tests/launcher/payload.py")
MARK = "NCCL_TEST_JOB"


@dataclass(frozen=True)
class Site:
    """Two hosts with two slots each, and the command that launches on them."""

    hostfile: Path
    ssh_config: Path | None
    folder: Path
    job: str
    launcher: str
    environ: Mapping[str, str] = field(default_factory=dict)

    def start(self, *argv: str, flags: Sequence[str] = ()) -> "subprocess.Popen[str]":
        command = [
            *self.command,
            *("--hostfile", str(self.hostfile), "--launcher", self.launcher),
            *(() if self.ssh_config is None else ("--ssh_config", str(self.ssh_config))),
            *flags,
            *argv,
        ]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            start_new_session=True,
        )

    @property
    def command(self) -> list[str]:
        """`dslaunch` without its arguments."""
        return [sys.executable, "-c", "import sys; from dslaunch.launcher.cli import main; sys.exit(main())"]

    @property
    def environment(self) -> dict[str, str]:
        """What the command finds; HOME is the folder."""
        env = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
        return {
            **env,
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT / "src"),
            MARK: self.job,
            **self.environ,
        }

    def run(self, *argv: str, flags: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        with self.start(*argv, flags=flags) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def processes(self) -> list[int]:
        """Pids of what lives of this job, on every host."""
        return living(MARK, self.job)

    def gone_within(self, timeout_s: float) -> list[int]:
        """What is left after the time, or as soon as nothing is."""
        return living_after(MARK, self.job, timeout_s)


def wait_until_up(process: "subprocess.Popen[str]", num_ranks: int = 4) -> None:
    assert process.stdout is not None
    num_up = 0
    for line in process.stdout:
        num_up += line.rstrip().endswith("] up")
        if num_up == num_ranks:
            return
    raise AssertionError(f"ended with {num_up} ranks up: {process.stderr and process.stderr.read()}")
