#!/usr/bin/env python3
"""Collects a sharded checkpoint of dslaunch into one fp32 state dict. Needs torch and safetensors only.

`save_checkpoint` places this script beside its checkpoints:
    python zero_to_fp32.py . output_dir [--tag TAG] [--safe_serialization] [--max_shard_size 5GB]
Tied parameters appear under each of their names, and share memory where the file format can say so. One
output file's tensors are in memory at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_FROZEN = -1


class Checkpoint:
    """A checkpoint as its manifest tells; `tensor` reads from the shards what it needs."""

    def __init__(self, checkpoint_dir: str | os.PathLike[str], tag: str | None = None) -> None:
        root = Path(checkpoint_dir)
        if tag is None and not (root / "manifest.json").is_file():
            latest = root / "latest"
            if not latest.is_file():
                raise ValueError(f"unable to find 'latest' file at {latest}")
            tag = latest.read_text(encoding="utf-8").strip()
        self.directory = root if tag is None else root / tag
        path = self.directory / "manifest.json"
        if not path.is_file():
            raise FileNotFoundError(f"checkpoint file {path} is missing")
        self.manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self._open: dict[int, Any] = {}

    def verify(self) -> None:
        """ValueError that names the first file which is missing or damaged."""
        for name, expected in self.manifest["files"].items():
            path = self.directory / name
            if not path.is_file():
                raise ValueError(f"checkpoint file {path} is missing")
            checksum = 0
            with path.open("rb") as file:
                while block := file.read(1 << 22):
                    checksum = zlib.crc32(block, checksum)
            if (path.stat().st_size, checksum) != (expected["num_bytes"], expected["crc32"]):
                raise ValueError(f"checkpoint file {path} is damaged")

    def names(self, exclude_frozen: bool = False) -> list[str]:
        """What `tensor` knows: parameters and buffers, each once."""
        params, whole = self.manifest["params"], self.manifest["whole"]
        kept = [name for name in params if not (exclude_frozen and params[name]["group"] == _FROZEN)]
        return kept + [name for name in whole if not (exclude_frozen and whole[name]["is_param"])]

    def aliases(self, names: list[str]) -> dict[str, str]:
        """Other names of `names`: name -> the one it is tied to."""
        present = set(names)
        return {alias: name for alias, name in self.manifest["aliases"].items() if name in present}

    def num_bytes(self, name: str) -> int:
        """The size of a tensor in fp32."""
        entry = self.manifest["params"].get(name) or self.manifest["whole"][name]
        return 4 * int(math.prod(entry["shape"]))

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter or buffer, whole; what is floating is fp32."""
        entry = self.manifest["params"].get(name)
        if entry is None:
            file = self.manifest["whole"][name]["file"]
            found: torch.Tensor = self._shard(file).get_tensor(f"module.{name}")
            return found.float() if found.is_floating_point() else found
        kind = "param" if entry["group"] == _FROZEN else "master"
        dtype = getattr(torch, entry["dtype"])
        whole = torch.empty(
            math.prod(entry["shape"]), dtype=torch.float32 if dtype.is_floating_point else dtype
        )
        at = 0
        for file, stored, start, numel in entry["pieces"]:
            whole[at : at + numel] = self._shard(file).get_slice(f"{stored}.{kind}")[start : start + numel]
            at += numel
        return whole.view(entry["shape"])

    def _shard(self, index: int) -> Any:
        if index not in self._open:
            self._open[index] = safe_open(self.directory / self.manifest["shards"][index], framework="pt")
        return self._open[index]


def state_dict_of(checkpoint: Checkpoint, exclude_frozen: bool = False) -> dict[str, torch.Tensor]:
    """The whole fp32 state dict, in memory."""
    names = checkpoint.names(exclude_frozen)
    found = {name: checkpoint.tensor(name) for name in names}
    return found | {alias: found[name] for alias, name in checkpoint.aliases(names).items()}


def export(
    checkpoint: Any,
    output_dir: str | os.PathLike[str],
    max_shard_size: str | None = "5GB",
    safe_serialization: bool = False,
    exclude_frozen: bool = False,
) -> list[Path]:
    """Write Hugging Face's files: one, or several of `max_shard_size` at most and an index.

    Returns the paths. In safetensors a tied parameter stands under its first name only, as in Hugging
    Face's own files.
    """
    output = Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    stem, suffix = ("model", "safetensors") if safe_serialization else ("pytorch_model", "bin")
    names = checkpoint.names(exclude_frozen)
    tied: dict[str, list[str]] = {}
    for alias, name in checkpoint.aliases(names).items():
        tied.setdefault(name, []).append(alias)
    limit = sys.maxsize if max_shard_size is None else size_in_bytes(max_shard_size)
    groups = list(_grouped(checkpoint, names, limit))
    paths: list[Path] = []
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        many = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        path = output / f"{stem}{many}.{suffix}"
        tensors = {name: checkpoint.tensor(name).contiguous() for name in group}
        if safe_serialization:
            save_file(tensors, path, metadata={"format": "pt"})
        else:
            tensors.update({alias: tensors[name] for name in group for alias in tied.get(name, ())})
            torch.save(tensors, path)
        weight_map.update(dict.fromkeys(tensors, path.name))
        paths.append(path)
    if len(groups) > 1:
        total = sum(checkpoint.num_bytes(name) for name in names)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (output / f"{stem}.{suffix}.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return paths


def _grouped(checkpoint: Any, names: list[str], limit: int) -> Iterator[list[str]]:
    group: list[str] = []
    filled = 0
    for name in names:
        num_bytes = checkpoint.num_bytes(name)
        if group and filled + num_bytes > limit:
            yield group
            group, filled = [], 0
        group.append(name)
        filled += num_bytes
    yield group


def size_in_bytes(text: str) -> int:
    """`text` such as 5GB or 500MiB as bytes; ValueError otherwise."""
    for unit, factor in _UNITS.items():
        number = text.strip().upper().removesuffix(unit)
        if number != text.strip().upper() and number.strip().replace(".", "", 1).isdigit():
            return int(float(number) * factor)
    raise ValueError(f"{text!r} is not a size such as 5GB or 500MB")


def place_beside(save_dir: Path) -> None:
    """Have this script in `save_dir`, for whoever collects the checkpoint without dslaunch."""
    target, source = save_dir / "zero_to_fp32.py", Path(__file__).read_bytes()
    if not target.is_file() or target.read_bytes() != source:
        fresh = save_dir / ".zero_to_fp32.py.saving"
        fresh.write_bytes(source)
        fresh.chmod(0o755)
        fresh.replace(target)


def main() -> int:
    """Entry point; DeepSpeed's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint_dir", help="the directory with `latest`, or a tag's")
    parser.add_argument("output_dir")
    parser.add_argument("-t", "--tag", help="default: what `latest` names")
    parser.add_argument("--max_shard_size", default="5GB")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    parser.add_argument("-d", "--debug", action="store_true", help="has no effect")
    args = parser.parse_args()
    try:
        checkpoint = Checkpoint(args.checkpoint_dir, args.tag)
        checkpoint.verify()
        paths = export(
            checkpoint,
            args.output_dir,
            args.max_shard_size,
            args.safe_serialization,
            args.exclude_frozen_parameters,
        )
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
