"""`dslaunchctl checkpoint`: looks into checkpoints, collects their weights, and changes their format."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine.checkpoint_convert import to_deepspeed, to_native
from dslaunch.engine.checkpoint_find import open_source
from dslaunch.engine.checkpoint_source import Source
from dslaunch.engine.deepspeed_source import DeepSpeedSource
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.fp32_weights import Weights
from dslaunch.engine.zero_to_fp32 import export

EXIT_DAMAGED = 1
EXIT_USAGE = 2


def inspect(root: Path, tag: str | None, verify: bool, as_json: bool) -> int:
    """Tell what the checkpoint is, and which others are there; with `verify` whether all bytes are."""
    source = _open(root, tag)
    errors = _verified(source) if verify else []
    told = _about(source, root)
    if as_json:
        print(json.dumps({**told, **({"damage": errors} if verify else {})}))
    else:
        width = max(len(key) for key in told)
        for key, value in told.items():
            print(f"{key.replace('_', ' '):<{width}}  {_words(value)}")
        for error in errors:
            print(f"error: {error}", file=sys.stderr)
        if verify and not errors:
            checked = len(source.manifest.files)
            print(f"{'verified':<{width}}  {checked} files" if checked else "it has no checksums to verify")
    return EXIT_DAMAGED if errors else 0


def _about(source: Source, root: Path) -> dict[str, object]:
    manifest = source.manifest
    counters = manifest.counters
    weights = Weights(source)
    numel = {name: weights.num_bytes(name) // 4 for name in weights.names()}
    trained = sum(numel[name] for name, entry in manifest.params.items() if entry.group >= 0)
    present = files.tags(root) or [manifest.tag]
    return {
        "checkpoint": str(source.directory),
        "format": "DeepSpeed" if isinstance(source, DeepSpeedSource) else "dslaunch",
        "saved": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.saved_at)),
        "world_size": manifest.world_size,
        "zero_stage": manifest.zero_stage,
        "dtype": manifest.dtype,
        "global_steps": counters.global_steps,
        "global_samples": counters.global_samples,
        "skipped_steps": counters.skipped_steps,
        "parameters": trained,
        "other_elements": sum(numel.values()) - trained,
        "optimizer_states": sorted({kind for kinds in manifest.kinds for kind in kinds[1:]}),
        "learning_rates": [group.get("lr") for group in manifest.param_groups],
        "client_state": sorted(source.state().client_state),
        "bytes": sum(path.stat().st_size for path in source.directory.iterdir()),
        "latest": files.newest_tag(root),
        "tags": present,
    }


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


def _verified(source: Source) -> list[str]:
    """What is wrong with its files."""
    errors: list[str] = []
    for name, expected in source.manifest.files.items():
        try:
            files.check(source.directory / name, expected)
        except CheckpointError as error:
            errors.append(error.what)
    return errors


def consolidate(root: Path, output: Path, tag: str | None, options: argparse.Namespace) -> int:
    """Write the whole model's fp32 weights as Hugging Face's files."""
    source = _open(root, tag)
    _look_over(source)
    for path in export(
        Weights(source), output, options.max_shard_size, not options.bin, options.exclude_frozen_parameters
    ):
        print(path)
    return 0


def convert(root: Path, output: Path, tag: str | None, to: str, num_ranks: int | None) -> int:
    """Write the checkpoint in the other format."""
    source = _open(root, tag)
    _look_over(source)
    if output.resolve() == source.directory.parent.resolve():
        raise CheckpointError(f"{output} is where the checkpoint is", "name another directory")
    write = to_deepspeed if to == "deepspeed" else to_native
    print(write(source, output, source.manifest.tag, num_ranks or source.manifest.world_size))
    return 0


def _open(root: Path, tag: str | None) -> Source:
    if tag is None and files.is_checkpoint(root):
        return open_source(root)
    named = tag or files.newest_tag(root)
    if named is None:
        raise CheckpointError(f"{root} has no file latest", _tags_hint(root))
    directory = files.find(root, named)
    if directory is None:
        raise files.no_such_tag(root, named)
    return open_source(directory)


def _tags_hint(root: Path) -> str:
    present = files.tags(root)
    return f"name one with --tag: {', '.join(present)}" if present else "name a directory of checkpoints"


def _look_over(source: Source) -> None:
    """Refuse damage, and say what will be missing."""
    if isinstance(source, DeepSpeedSource) and source.has_nameless_states:
        print(
            f"warning: {source.directory} does not say whose its optimizer states are "
            "(stage 0, several groups): only the weights are taken, in the model's dtype; "
            "load_checkpoint reads all of it",
            file=sys.stderr,
        )
    for name, expected in source.manifest.files.items():
        files.check(source.directory / name, expected)


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dslaunchctl checkpoint", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("inspect", "consolidate", "convert"):
        command = commands.add_parser(name)
        command.add_argument("directory", type=Path)
        command.add_argument("--tag")
        if name == "inspect":
            command.add_argument("--verify", action="store_true")
            command.add_argument("--json", action="store_true")
            continue
        command.add_argument("output", type=Path)
        if name == "convert":
            command.add_argument("--to", choices=("dslaunch", "deepspeed"), required=True)
            command.add_argument("--ranks", type=int)
        else:
            command.add_argument("--max_shard_size", default="5GB")
            command.add_argument("--bin", action="store_true")
            command.add_argument("--exclude_frozen_parameters", action="store_true")
    options = parser.parse_args(argv)
    try:
        if options.command == "inspect":
            return inspect(options.directory, options.tag, options.verify, options.json)
        if options.command == "consolidate":
            return consolidate(options.directory, options.output, options.tag, options)
        return convert(options.directory, options.output, options.tag, options.to, options.ranks)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"error: {error}\nhint: see dslaunchctl checkpoint {options.command} --help", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
