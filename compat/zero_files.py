"""Files in the form of DeepSpeed's, for programs that open these themselves, as Lightning's converter does.

DeepSpeed's own checkpoints have them. Of one of ours, what such programs look for beside weights (client
state, counters, the stage) is written to a temporary folder that goes with the process.
"""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path

import torch

from dslaunch.engine.checkpoint_find import open_source
from dslaunch.engine.deepspeed_source import is_deepspeed


def get_model_state_file(checkpoint_dir: str, zero_stage: int) -> str:
    """The file with the client state, of rank 0; FileNotFoundError where there is none.

    `checkpoint_dir` is a tag's. Of one of our checkpoints the file has no weights in it.
    """
    directory = _existing(checkpoint_dir)
    if not is_deepspeed(directory):
        return _written(directory)[0]
    path = directory / f"{'zero_pp_rank_0_' if zero_stage == 3 else ''}mp_rank_00_model_states.pt"
    if not path.exists():
        raise FileNotFoundError(f"can't find model states file at '{path}'")
    return str(path)


def get_optim_files(checkpoint_dir: str) -> list[str]:
    """The ranks' files with optimizer states, in order; of one of our checkpoints a file with the stage."""
    directory = _existing(checkpoint_dir)
    if not is_deepspeed(directory):
        return [_written(directory)[1]]
    paths = sorted(directory.glob("*_optim_states.pt"), key=_rank_of)
    if not paths:
        raise FileNotFoundError(f"can't find *_optim_states.pt files in directory '{directory}'")
    return [str(path) for path in paths]


def _rank_of(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name.removeprefix("bf16_"))]


def _existing(checkpoint_dir: str) -> Path:
    directory = Path(checkpoint_dir)
    if not directory.is_dir():
        raise FileNotFoundError(f"Directory '{directory}' doesn't exist")
    return directory


def _written(directory: Path) -> tuple[str, str]:
    """What `directory`, one of our checkpoints, would have in a model's and in an optimizer's file."""
    source = open_source(directory)
    manifest, counters = source.manifest, source.manifest.counters
    model = {
        "module": {},
        "lr_scheduler": None,
        "global_steps": counters.global_steps,
        "global_samples": counters.global_samples,
        "skipped_steps": counters.skipped_steps,
        "dp_world_size": manifest.world_size,
        "mp_world_size": 1,
        **source.state().client_state,
    }
    source.close()
    optimizer = {"zero_stage": manifest.zero_stage, "partition_count": manifest.world_size}
    folder = tempfile.mkdtemp(dir=_folder().name)
    paths = f"{folder}/mp_rank_00_model_states.pt", f"{folder}/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save(model, paths[0])
    torch.save({"optimizer_state_dict": optimizer}, paths[1])
    return paths


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dslaunch-zero-files-")
