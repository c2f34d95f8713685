"""The manifest of a checkpoint: what every file holds, in JSON, with checksums. No torch.

It says where the elements of each parameter lie (file, tensor, first element, number), so that any number of
ranks can read its own slices. A parameter in an optimizer group lies in several tensors alike, one of each
of the group's kinds: `<tensor>.master`, `<tensor>.exp_avg`, ...; one that is only kept, in `<tensor>.param`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine.checkpoint_files import FileSum
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.layout import Piece

NAME = "manifest.json"
STATE_FILE = "state.pt"
FORMAT = "dslaunch-checkpoint"
VERSION = 2
FROZEN = -1  # the group of parameters that are only kept
PARAM = "param"


@dataclass(frozen=True, slots=True)
class Counters:
    """How far training had come."""

    global_steps: int
    global_samples: int
    skipped_steps: int
    optimizer_steps: int  # Adam's t: steps applied


@dataclass(frozen=True, slots=True)
class ParamEntry:
    """A parameter that lies in flat tensors, in pieces."""

    shape: tuple[int, ...]
    dtype: str  # as the model has it: "bfloat16"
    group: int  # its optimizer group, or FROZEN
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class WholeEntry:
    """A buffer, or a parameter that no bucket holds, stored as `module.<name>`."""

    file: int
    shape: tuple[int, ...]
    dtype: str
    is_param: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of `manifest.json`. There are no groups when the engine had no optimizer."""

    tag: str
    saved_at: float  # seconds since the epoch
    world_size: int
    zero_stage: int
    dtype: str
    counters: Counters
    shards: tuple[str, ...]  # names of the tensor files
    params: Mapping[str, ParamEntry]
    whole: Mapping[str, WholeEntry]
    aliases: Mapping[str, str]  # state-dict name -> the name its tensor is stored under
    param_groups: tuple[Mapping[str, object], ...]  # hyperparameters
    kinds: tuple[tuple[str, ...], ...]  # of each group: "master" and the optimizer's states
    files: Mapping[str, FileSum]

    def kinds_of(self, name: str) -> tuple[str, ...]:
        """What is stored of a parameter in `params`."""
        group = self.params[name].group
        return (PARAM,) if group == FROZEN else self.kinds[group]

    def weight_kind(self, name: str) -> str:
        """The kind that holds the parameter itself: the master, where there is one."""
        return self.kinds_of(name)[0]

    def names(self) -> set[str]:
        """Every tensor's name in a state dict, aliases too."""
        stored = {*self.params, *self.whole}
        return stored | {alias for alias, name in self.aliases.items() if name in stored}


def shard_name(index: int, num_shards: int) -> str:
    """The file that rank `index` writes."""
    return f"shard-{index:05d}-of-{num_shards:05d}.safetensors"


def whole_tensor(name: str) -> str:
    """The tensor in a shard that holds `whole[name]`."""
    return f"module.{name}"


def write(manifest: Manifest, directory: Path) -> None:
    """Write `manifest.json`, with a checksum of its own content, and force it to disk."""
    body = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    for entry in body["params"].values():
        entry["pieces"] = [list(piece.values()) for piece in entry["pieces"]]
    body = json.loads(json.dumps(body))
    body["checksum"] = _checksum(body)
    files.write(directory / NAME, json.dumps(body, indent=0).encode())


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
            f"checkpoint file {path} is missing",
            "name a directory that save_checkpoint of dslaunch or DeepSpeed has written",
        ) from None
    except (ValueError, KeyError, AttributeError, TypeError):
        intact = False
    if not intact:
        raise CheckpointError(f"checkpoint file {path} is damaged", files.DAMAGED_HINT)
    if (body["format"], body["version"]) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} is {body['format']} version {body['version']}, not {FORMAT} version {VERSION}",
            "load it with the dslaunch that wrote it",
        )
    return _from_json(body)


def _from_json(body: dict[str, object]) -> Manifest:
    params = cast("dict[str, dict[str, object]]", body["params"])
    whole = cast("dict[str, dict[str, object]]", body["whole"])
    entries = cast("dict[str, dict[str, int]]", body["files"])
    return Manifest(
        tag=cast(str, body["tag"]),
        saved_at=cast(float, body["saved_at"]),
        world_size=cast(int, body["world_size"]),
        zero_stage=cast(int, body["zero_stage"]),
        dtype=cast(str, body["dtype"]),
        counters=Counters(**cast("dict[str, int]", body["counters"])),
        shards=tuple(cast("list[str]", body["shards"])),
        params={name: _param(entry) for name, entry in params.items()},
        whole={name: _whole(entry) for name, entry in whole.items()},
        aliases=cast("dict[str, str]", body["aliases"]),
        param_groups=tuple(cast("list[dict[str, object]]", body["param_groups"])),
        kinds=tuple(tuple(kinds) for kinds in cast("list[list[str]]", body["kinds"])),
        files={name: FileSum(**entry) for name, entry in entries.items()},
    )


def _param(entry: dict[str, object]) -> ParamEntry:
    return ParamEntry(
        tuple(cast("list[int]", entry["shape"])),
        cast(str, entry["dtype"]),
        cast(int, entry["group"]),
        tuple(Piece(*piece) for piece in cast("list[tuple[int, str, int, int]]", entry["pieces"])),
    )


def _whole(entry: dict[str, object]) -> WholeEntry:
    return WholeEntry(
        cast(int, entry["file"]),
        tuple(cast("list[int]", entry["shape"])),
        cast(str, entry["dtype"]),
        cast(bool, entry["is_param"]),
    )


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
