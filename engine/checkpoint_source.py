"""A checkpoint that is read from: its manifest, slices of its tensors, and the rest of its state."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine.checkpoint_manifest import Manifest
from dslaunch.engine.layout import cut
from dslaunch.engine.tensor_files import TensorFile, dtype_named


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a checkpoint holds beside tensors of the model and the optimizer."""

    client_state: dict[str, object]
    lr_scheduler: object  # None: there was none
    loss_scaler: Mapping[str, float] | None  # None: not fp16
    module_extra: Mapping[str, object]  # of the module's state dict: what is no tensor


@dataclass(frozen=True, slots=True)
class Fill:
    """Elements from `start` on of a stored tensor, flattened, are to be copied to `out` (1-D)."""

    file: int
    tensor: str
    start: int
    out: torch.Tensor
    dtype: torch.dtype  # as stored


class Source(Protocol):
    """An open checkpoint of some format."""

    @property
    def directory(self) -> Path: ...

    @property
    def manifest(self) -> Manifest: ...

    def read(self, fill: Fill) -> None:
        """Copy what `fill` names; no more than a block of it is ever in memory beside."""

    def state(self) -> SavedState:
        """Everything else, without running code that the files name."""

    def close(self) -> None:
        """Close the files."""


class NativeSource:
    """A checkpoint that `save_checkpoint` wrote. Files are opened when something of them is wanted."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self._files: dict[int, TensorFile] = {}

    def read(self, fill: Fill) -> None:
        if fill.file not in self._files:
            self._files[fill.file] = TensorFile(self.directory / self.manifest.shards[fill.file])
        self._files[fill.file].read(fill.tensor, fill.start, fill.out)

    def state(self) -> SavedState:
        return state_from((self.directory / manifests.STATE_FILE).read_bytes())

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def state_from(data: bytes) -> SavedState:
    """The content of a state file."""
    found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return SavedState(
        found["client_state"], found["lr_scheduler"], found["loss_scaler"], found["module_extra"]
    )


def stored_name(manifest: Manifest, name: str) -> str | None:
    """The name under which the tensor that a state dict calls `name` is stored; None: it is not."""
    for candidate in (name, manifest.aliases.get(name, name)):
        if candidate in manifest.params or candidate in manifest.whole:
            return candidate
    return None


def shape_in(manifest: Manifest, name: str) -> tuple[int, ...]:
    """The shape of a stored tensor."""
    return (manifest.params.get(name) or manifest.whole[name]).shape


def fills_of(manifest: Manifest, name: str, kind: str, low: int, out: torch.Tensor) -> list[Fill]:
    """What copies elements from `low` on of a stored parameter's master or state to `out` [n]."""
    entry = manifest.params[name]
    dtype = dtype_named(entry.dtype) if kind == manifests.PARAM else torch.float32
    found: list[Fill] = []
    at = 0
    for piece in cut(entry.pieces, low, low + out.numel()):
        part = out[at : at + piece.numel]
        found.append(Fill(piece.file, f"{piece.tensor}.{kind}", piece.start, part, dtype))
        at += piece.numel
    return found


def weight_fills(manifest: Manifest, name: str, low: int, out: torch.Tensor) -> list[Fill]:
    """What copies elements of the stored tensor `name` itself, parameter or buffer, to `out` [n]."""
    if name in manifest.params:
        return fills_of(manifest, name, manifest.weight_kind(name), low, out)
    if not out.numel():
        return []
    whole = manifest.whole[name]
    return [Fill(whole.file, manifests.whole_tensor(name), low, out, dtype_named(whole.dtype))]


def read_whole(source: Source, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A stored tensor, in the model's dtype at the time or in `dtype`."""
    manifest = source.manifest
    entry = manifest.params.get(name) or manifest.whole[name]
    whole = torch.empty(entry.shape, dtype=dtype or dtype_named(entry.dtype))
    for fill in weight_fills(manifest, name, 0, whole.view(-1)):
        source.read(fill)
    return whole
