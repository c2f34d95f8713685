"""The manifest of a checkpoint: what every shard holds, in JSON, with checksums. No torch.

It says where each parameter lies (bucket, offset, numel, shape), so that any number of ranks can read its
own slices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from dslaunch.engine.checkpoint_files import FileSum
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.layout import BucketSpec, Layout, Slot

NAME = "manifest.json"
FORMAT = "dslaunch-checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Counters:
    """How far training had come."""

    global_steps: int
    global_samples: int
    skipped_steps: int
    optimizer_steps: int  # Adam's t: steps applied


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of `manifest.json`. `layout` is None when the engine had no optimizer."""

    tag: str
    world_size: int
    zero_stage: int
    dtype: str
    counters: Counters
    layout: Layout | None
    shapes: Mapping[str, tuple[int, ...]]  # of every parameter in the layout
    aliases: Mapping[str, str]  # state-dict name -> the name its tensor is stored under
    param_groups: tuple[Mapping[str, object], ...]  # hyperparameters
    files: Mapping[str, FileSum]


def shard_name(index: int, num_shards: int) -> str:
    """The file of optimizer shard `index`."""
    return f"optimizer-{index:05d}-of-{num_shards:05d}.safetensors"


def write(manifest: Manifest, directory: Path) -> None:
    """Write `manifest.json`, with a checksum of its own content."""
    body = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    body["checksum"] = _checksum(body)
    (directory / NAME).write_text(json.dumps(body, indent=1), encoding="utf-8")


def read(directory: Path) -> Manifest:
    """The manifest of a checkpoint; CheckpointError if it is missing, damaged or of another version."""
    path = directory / NAME
    body: dict[str, object] = {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        checksum = body.pop("checksum")
        intact = checksum == _checksum(body)
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} is not a dslaunch checkpoint: it has no {NAME}",
            "checkpoints of DeepSpeed cannot be read yet",
        ) from None
    except (ValueError, KeyError, AttributeError, TypeError):
        intact = False
    if not intact:
        raise CheckpointError(f"checkpoint file {path} is damaged", "load another tag")
    if (body["format"], body["version"]) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} is {body['format']} version {body['version']}, not {FORMAT} version {VERSION}",
            "use a newer dslaunch",
        )
    return _from_json(body)


def _from_json(body: dict[str, object]) -> Manifest:
    files = cast("dict[str, dict[str, object]]", body["files"])
    layout = cast("dict[str, object] | None", body["layout"])
    return Manifest(
        tag=cast(str, body["tag"]),
        world_size=cast(int, body["world_size"]),
        zero_stage=cast(int, body["zero_stage"]),
        dtype=cast(str, body["dtype"]),
        counters=Counters(**cast("dict[str, int]", body["counters"])),
        layout=None if layout is None else _layout(layout),
        shapes={name: tuple(shape) for name, shape in cast("dict[str, list[int]]", body["shapes"]).items()},
        aliases=cast("dict[str, str]", body["aliases"]),
        param_groups=tuple(cast("list[dict[str, object]]", body["param_groups"])),
        files={name: FileSum(**cast("dict[str, int | str]", entry)) for name, entry in files.items()},  # type: ignore[arg-type]
    )


def _layout(body: dict[str, object]) -> Layout:
    buckets = cast("list[dict[str, object]]", body["buckets"])
    return Layout(
        tuple(
            BucketSpec(
                index=cast(int, bucket["index"]),
                group=cast(int, bucket["group"]),
                dtype=cast(str, bucket["dtype"]),
                slots=tuple(Slot(**slot) for slot in cast("list[dict[str, object]]", bucket["slots"])),  # type: ignore[arg-type]
                numel=cast(int, bucket["numel"]),
            )
            for bucket in buckets
        ),
        cast(int, body["num_shards"]),
    )


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
