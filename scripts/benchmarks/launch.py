"""What a launcher costs: until its ranks run, here and on hosts; to pass on their lines; in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import figures
from benchmarks.dispatch import measure_dispatch
from benchmarks.local import measure_local
from benchmarks.logs import measure_logs
from benchmarks.process_tree import BenchmarkError

PARTS = ("local", "dispatch", "logs")


@click.command(name="launch", help=__doc__)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each command."
)
@click.option(
    "--ranks",
    "rank_counts",
    type=click.IntRange(min=1),
    multiple=True,
    default=(2, 8),
    show_default=True,
    help="Local ranks; may be given several times.",
)
@click.option(
    "--hosts",
    "host_counts",
    type=click.IntRange(min=1),
    multiple=True,
    default=(2, 4, 8, 16),
    show_default=True,
    help="Hosts to dispatch to; may be given several times.",
)
@click.option(
    "--only",
    "parts",
    type=click.Choice(PARTS),
    multiple=True,
    default=PARTS,
    help="Leave the other parts out; may be given several times.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every sample to this file.")
def command(
    rounds: int,
    rank_counts: Sequence[int],
    host_counts: Sequence[int],
    parts: Sequence[str],
    json_path: str | None,
) -> None:
    record: dict[str, object] = {"benchmark": "launch", "rounds": rounds, "machine": figures.machine()}
    measures = {
        "local": lambda: measure_local(rounds, rank_counts),
        "dispatch": lambda: measure_dispatch(rounds, host_counts),
        "logs": lambda: measure_logs(rounds),
    }
    try:
        for name in (part for part in PARTS if part in parts):
            part = measures[name]()
            figures.progress("")
            part.print()
            record[name] = part.record
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    if json_path is not None:
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n")
