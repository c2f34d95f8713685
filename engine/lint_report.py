"""What the linter found, and how it is told: as text or as one JSON object. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from dslaunch.engine.batch import BatchSizes
from dslaunch.engine.memory_estimate import StageMemory

Level = Literal["error", "warning", "note"]

_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know. `path` is the key, or empty; `hint` is empty where nothing is to be done."""

    level: Level
    path: str
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """The memory of one rank at every stage, for a model of `num_params`; `stage` is the config's."""

    num_params: int
    num_ranks: int
    states: str  # dtype and optimizer, in words
    stage: int
    stages: Sequence[StageMemory]


@dataclass(frozen=True, slots=True)
class Report:
    """All of it. `batch` is None where it cannot be known, `memory` where no parameter count is given."""

    file: str
    findings: Sequence[Finding]
    batch: BatchSizes | None
    num_ranks: int | None
    memory: MemoryTable | None

    def count(self, level: Level) -> int:
        """How many findings there are of a level."""
        return sum(finding.level == level for finding in self.findings)


def as_json(report: Report) -> str:
    """One object; sizes in bytes."""
    memory = report.memory
    body = {
        "file": report.file,
        "findings": [asdict(finding) for finding in report.findings],
        "batch": None if report.batch is None else {**asdict(report.batch), "world_size": report.num_ranks},
        "memory": None
        if memory is None
        else {
            **{key: value for key, value in asdict(memory).items() if key != "stages"},
            "stages": [{**asdict(stage), "total_bytes": stage.total_bytes} for stage in memory.stages],
        },
    }
    return json.dumps(body, indent=2)


def as_text(report: Report) -> str:
    """Errors first, each with its hint; then the batch triangle and the memory table."""
    lines = [f"{report.file}: {', '.join(_count(report, level) for level in ('error', 'warning', 'note'))}"]
    for level in ("error", "warning", "note"):
        for finding in report.findings:
            if finding.level == level:
                lines.append(f"{level}: {finding.what}")
                if finding.hint:
                    lines.append(f"hint: {finding.hint}")
    if report.batch is not None:
        sizes = report.batch
        lines.append(
            f"batch: train_batch_size {sizes.train} = train_micro_batch_size_per_gpu {sizes.micro} * "
            f"gradient_accumulation_steps {sizes.accumulation} * world_size {report.num_ranks}"
        )
    if report.memory is not None:
        lines += _memory(report.memory)
    return "\n".join(lines)


def _count(report: Report, level: Level) -> str:
    count = report.count(level)
    return f"{count} {level}{'' if count == 1 else 's'}"


def _memory(table: MemoryTable) -> list[str]:
    offloads = any(memory.host_bytes for memory in table.stages)
    lines = [
        f"memory of one of {table.num_ranks} ranks in GiB, for {table.num_params:,} parameters, "
        f"{table.states}; activations come on top:",
        f"  stage{'parameters':>12}{'gradients':>12}{'optimizer':>12}{'buffers':>12}{'total':>12}"
        + (f"{'on the host':>13}" if offloads else ""),
    ]
    for memory in table.stages:
        mark = "*" if memory.stage == table.stage else " "
        parts = (memory.params_bytes, memory.grads_bytes, memory.optimizer_bytes, memory.buffers_bytes)
        cells = "".join(f"{part / _GIB:>12.2f}" for part in (*parts, memory.total_bytes))
        host = f"{memory.host_bytes / _GIB:>13.2f}" if offloads else ""
        lines.append(f"{mark} {memory.stage:<5}{cells}{host}")
    return lines
