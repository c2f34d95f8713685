"""`scripts/bench SUBCOMMAND`: one module of `benchmarks` a subcommand."""

from __future__ import annotations

import click
from benchmarks import checkpoint, engine, faults, launch, multigpu, offload, ops, soak


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def bench() -> None:
    """Measure dslaunch beside its peers, on this machine and in one run."""


bench.add_command(launch.command)
bench.add_command(faults.command)
bench.add_command(soak.command)
bench.add_command(ops.command)
bench.add_command(engine.command)
bench.add_command(multigpu.command)
bench.add_command(offload.command)
bench.add_command(checkpoint.command)

if __name__ == "__main__":
    bench(prog_name="scripts/bench")
