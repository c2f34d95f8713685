"""`dslaunchctl checkpoint`: the engine's tool, run as a program: the launcher does not import the engine."""

from __future__ import annotations

import subprocess
import sys

import click

_TAG = click.option("--tag", metavar="TAG", help="Which checkpoint; by default the one `latest` names.")


@click.group()
def checkpoint() -> None:
    """Look into checkpoints, collect their weights, change their format: dslaunch's and DeepSpeed's."""


@checkpoint.command()
@click.argument("directory")
@_TAG
@click.option("--verify", is_flag=True, help="Read all files and compare their checksums.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def inspect(directory: str, tag: str | None, verify: bool, as_json: bool) -> int:
    """Tell what a checkpoint holds, and which others are in DIRECTORY; exit code 1 if it is damaged."""
    return _run("inspect", directory, tag, ["--verify"] * verify + ["--json"] * as_json)


@checkpoint.command()
@click.argument("directory")
@click.argument("output")
@_TAG
@click.option("--max_shard_size", default="5GB", metavar="SIZE", help="Of each file written. [5GB]")
@click.option("--bin", "as_bin", is_flag=True, help="Write pytorch_model.bin, not model.safetensors.")
@click.option("--exclude_frozen_parameters", is_flag=True, help="Leave out what was not trained.")
def consolidate(
    directory: str, output: str, tag: str | None, max_shard_size: str, as_bin: bool, **flags: bool
) -> int:
    """Write the model's weights in fp32 into the folder OUTPUT, as Hugging Face names them."""
    more = ["--max_shard_size", max_shard_size, *["--bin"] * as_bin]
    more += [f"--{name}" for name, is_set in flags.items() if is_set]
    return _run("consolidate", directory, tag, more, output)


@checkpoint.command()
@click.argument("directory")
@click.argument("output")
@_TAG
@click.option(
    "--to", type=click.Choice(["dslaunch", "deepspeed"]), required=True, help="The format to write."
)
@click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="Files of so many ranks. [as it has]")
def convert(directory: str, output: str, tag: str | None, to: str, ranks: int | None) -> int:
    """Write a checkpoint in the other format into the folder OUTPUT."""
    more = ["--to", to, *([] if ranks is None else ["--ranks", str(ranks)])]
    return _run("convert", directory, tag, more, output)


def _run(command: str, directory: str, tag: str | None, more: list[str], *outputs: str) -> int:
    """Run the tool on this process's own stdout and stderr; its exit code."""
    argv = [sys.executable, "-m", "dslaunch.engine.checkpoint_tool", command, *more]
    argv += [] if tag is None else ["--tag", tag]
    return subprocess.run([*argv, "--", directory, *outputs], check=False).returncode
