"""Files in DeepSpeed's form, of our checkpoints and of its own: what a converter of another library opens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import dslaunch.engine as deepspeed
from dslaunch.compat.zero_files import get_model_state_file, get_optim_files

THEIRS = Path(__file__).parents[1] / "engine/deepspeed_checkpoints"


def test_one_of_our_checkpoints_tells_stage_counters_and_client_state(tmp_path: Path) -> None:
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}, "log_level": "error"}
    engine = deepspeed.initialize(model=torch.nn.Linear(4, 4), config=config)[0]
    engine.save_checkpoint(tmp_path, tag="it", client_state={"epoch": 3, "loops": {"fit": [1, None]}})
    names = sorted(path.name for path in (tmp_path / "it").iterdir())
    (optim,) = get_optim_files(str(tmp_path / "it"))
    stage = torch.load(optim)["optimizer_state_dict"]["zero_stage"]
    model = torch.load(get_model_state_file(str(tmp_path / "it"), stage))
    assert stage == 0
    assert (model["epoch"], model["loops"], model["global_steps"]) == (3, {"fit": [1, None]}, 0)
    assert (model["dp_world_size"], model["module"]) == (1, {})
    assert sorted(path.name for path in (tmp_path / "it").iterdir()) == names
    engine.destroy()


@pytest.mark.parametrize(
    ("name", "stage", "num_ranks"), [("stage1-bf16-world3", 1, 3), ("stage3-fp16-world2", 3, 2)]
)
def test_of_deepspeeds_own_it_is_their_files(name: str, stage: int, num_ranks: int) -> None:
    directory = next(path for path in (THEIRS / name).iterdir() if path.is_dir())
    found = [Path(path) for path in get_optim_files(str(directory))]
    ranks = [re.findall(r"rank_(\d+)_mp", path.name) for path in found]
    assert ranks == [[str(rank)] for rank in range(num_ranks)]
    model = Path(get_model_state_file(str(directory), stage))
    assert model.name == ("zero_pp_rank_0_" if stage == 3 else "") + "mp_rank_00_model_states.pt"
    assert all(path.is_file() for path in (*found, model))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Directory '.*/none' doesn't exist"):
        get_optim_files(str(tmp_path / "none"))
    (tmp_path / "mp_rank_00_model_states.pt").touch()
    with pytest.raises(FileNotFoundError, match=r"can't find \*_optim_states.pt files in directory"):
        get_optim_files(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"can't find model states file at .*zero_pp_rank_0"):
        get_model_state_file(str(tmp_path), 3)
