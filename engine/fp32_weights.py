"""A checkpoint's weights in fp32, ours or DeepSpeed's: the functions of `deepspeed.utils.zero_to_fp32`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine.checkpoint_find import open_source
from dslaunch.engine.checkpoint_manifest import FROZEN
from dslaunch.engine.checkpoint_source import Source, read_whole, shape_in
from dslaunch.engine.tensor_files import dtype_named
from dslaunch.engine.zero_to_fp32 import export

PathLike = str | os.PathLike[str]


class Weights:
    """What `zero_to_fp32.export` asks of a checkpoint, of a source of either format."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._manifest = source.manifest

    def names(self, exclude_frozen: bool = False) -> list[str]:
        """Parameters and buffers, each once."""
        params, whole = self._manifest.params, self._manifest.whole
        kept = [name for name, entry in params.items() if not (exclude_frozen and entry.group == FROZEN)]
        return kept + [name for name, entry in whole.items() if not (exclude_frozen and entry.is_param)]

    def aliases(self, names: list[str]) -> dict[str, str]:
        """Other names of `names`: name -> the one it is tied to."""
        return {alias: name for alias, name in self._manifest.aliases.items() if name in set(names)}

    def num_bytes(self, name: str) -> int:
        """The size of a tensor in fp32."""
        return 4 * math.prod(self.shape(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return shape_in(self._manifest, name)

    def dtype(self, name: str) -> torch.dtype:
        """What `tensor` returns: fp32 where it is floating."""
        entry = self._manifest.params.get(name) or self._manifest.whole[name]
        stored = dtype_named(entry.dtype)
        return torch.float32 if stored.is_floating_point else stored

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter or buffer, whole."""
        return read_whole(self._source, name, self.dtype(name))


class LazyTensor:
    """A tensor of a checkpoint that is read when `contiguous` is called."""

    def __init__(self, weights: Weights, name: str) -> None:
        self._weights, self._name = weights, name
        self.shape, self.dtype = torch.Size(weights.shape(name)), weights.dtype(name)

    def numel(self) -> int:
        """The number of elements."""
        return self.shape.numel()

    def contiguous(self) -> torch.Tensor:
        """The tensor, read from the files."""
        return self._weights.tensor(self._name)


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: PathLike,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> Mapping[str, torch.Tensor | LazyTensor]:
    """The whole fp32 state dict; with `lazy_mode` of `LazyTensor`, which read the files when asked.

    ValueError where there is no `latest` and no tag, FileNotFoundError where the tag is not there,
    CheckpointError where it is damaged.
    """
    weights = Weights(open_for_reading(checkpoint_dir, tag))
    names = weights.names(exclude_frozen_parameters)
    found: dict[str, torch.Tensor | LazyTensor] = {
        name: LazyTensor(weights, name) if lazy_mode else weights.tensor(name) for name in names
    }
    return found | {alias: found[name] for alias, name in weights.aliases(names).items()}


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: PathLike,
    output_dir: PathLike,
    max_shard_size: str | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Write the fp32 weights as Hugging Face's files, see `zero_to_fp32.export`."""
    weights = Weights(open_for_reading(checkpoint_dir, tag))
    export(weights, output_dir, max_shard_size, safe_serialization, exclude_frozen_parameters)


def load_state_dict_from_zero_checkpoint(
    model: torch.nn.Module, checkpoint_dir: PathLike, tag: str | None = None
) -> torch.nn.Module:
    """Move `model` to the CPU and load the fp32 weights into it; returns it. It is no engine's any more."""
    state_dict = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    model = model.cpu()
    model.load_state_dict(state_dict, strict=False)
    return model


def open_for_reading(checkpoint_dir: PathLike, tag: str | None = None) -> Source:
    """The checkpoint `tag`, or what `latest` names, in a directory; or the one the directory itself is."""
    root = Path(checkpoint_dir)
    if tag is None and files.is_checkpoint(root):
        return open_source(root)
    named = tag if tag is not None else files.newest_tag(root)
    if named is None:
        raise ValueError(f"Unable to find 'latest' file at {root / 'latest'}")
    directory = files.find(root, named)
    if directory is None:
        raise FileNotFoundError(f"Directory '{root / named}' doesn't exist")
    return open_source(directory)
