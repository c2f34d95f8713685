"""Looking into checkpoints, collecting their weights, and converting them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from deepspeed_cases import HERE, Net
from rank_pool import RankPool
from safetensors.torch import load_file

from dslaunch.engine import checkpoint_tool, zero_to_fp32
from dslaunch.engine.checkpoint_find import open_source
from dslaunch.engine.deepspeed_source import DeepSpeedSource
from dslaunch.engine.fp32_weights import (
    LazyTensor,
    convert_zero_checkpoint_to_fp32_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)

CASES = sorted(path.name for path in HERE.iterdir() if path.is_dir())
Dtypes = pytest.mark.parametrize(("stage", "dtype"), [(0, "fp32"), (1, "fp16"), (3, "bf16")])


@pytest.fixture
def saved(ranks: RankPool, tmp_path: Path, stage: int, dtype: str) -> Path:
    ranks.run(2, "deepspeed_cases", "save", str(tmp_path / "ours"), stage, dtype)
    return tmp_path / "ours"


def expected_weights(expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In fp32: masters where there are any, else what the module has."""
    module = {n.removeprefix("module."): v.float() for n, v in expected.items() if n.startswith("module.")}
    masters = {n.removeprefix("master."): v for n, v in expected.items() if n.startswith("master.")}
    return {name: masters.get(name.replace("again.weight", "middle.weight"), module[name]) for name in module}


def assert_same(found: object, expected: dict[str, torch.Tensor]) -> None:
    assert isinstance(found, dict)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], value), name


@Dtypes
def test_weights_are_collected(saved: Path) -> None:
    expected = torch.load(saved / "expected.pt")
    weights = expected_weights({name: value for name, value in expected.items() if "." in name})
    assert_same(zero_to_fp32.state_dict_of(zero_to_fp32.Checkpoint(saved)), weights)
    assert_same(get_fp32_state_dict_from_zero_checkpoint(saved), weights)
    trained = get_fp32_state_dict_from_zero_checkpoint(saved, exclude_frozen_parameters=True)
    assert weights.keys() - trained.keys() == {"inner.weight", "norm.bias"}


@pytest.mark.parametrize(("stage", "dtype"), [(3, "bf16")])
def test_the_script_beside_a_checkpoint_needs_no_dslaunch(saved: Path, tmp_path: Path) -> None:
    script = saved / "zero_to_fp32.py"
    run = subprocess.run(
        [sys.executable, "-I", str(script), str(saved), str(tmp_path / "out"), "--max_shard_size", "0.2KB"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    index = json.loads((tmp_path / "out" / "pytorch_model.bin.index.json").read_text())
    parts = [torch.load(tmp_path / "out" / name) for name in sorted(set(index["weight_map"].values()))]
    whole = {name: value for part in parts for name, value in part.items()}
    assert index["weight_map"].keys() == whole.keys()
    expected = torch.load(saved / "expected.pt")
    assert_same(whole, expected_weights({k: v for k, v in expected.items() if "." in k}))


@pytest.mark.parametrize(("stage", "dtype"), [(2, "bf16")])
def test_the_script_names_a_damaged_file(saved: Path) -> None:
    shard = next(saved.glob("*/shard-00001-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"checkpoint file {shard} is damaged"):
        zero_to_fp32.Checkpoint(saved).verify()


@pytest.mark.parametrize("case", CASES)
def test_weights_of_deepspeed_checkpoints(case: str, tmp_path: Path) -> None:
    expected = expected_weights(load_file(HERE / case / "expected.safetensors"))
    found = get_fp32_state_dict_from_zero_checkpoint(HERE / case)
    assert_same(found, expected)
    lazy = get_fp32_state_dict_from_zero_checkpoint(HERE / case, lazy_mode=True)
    for name, value in lazy.items():
        assert isinstance(value, LazyTensor)
        assert torch.equal(value.contiguous(), found[name])  # type: ignore[arg-type]
    convert_zero_checkpoint_to_fp32_state_dict(HERE / case, tmp_path, safe_serialization=True)
    del expected["again.weight"]  # tied
    assert_same(load_file(tmp_path / "model.safetensors"), expected)
    model = load_state_dict_from_zero_checkpoint(Net(), HERE / case, tag="global_step3")
    assert torch.equal(model.state_dict()["outer.weight"], expected["outer.weight"])


@Dtypes
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_there_and_back(
    ranks: RankPool, saved: Path, tmp_path: Path, stage: int, dtype: str, num_ranks: int
) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "again")
    expected = str(saved / "expected.pt")
    convert = ["--to", "deepspeed", "--ranks", str(num_ranks)]
    assert checkpoint_tool.main(["convert", str(saved), theirs, *convert]) == 0
    assert isinstance(open_source(tmp_path / "theirs" / "global_step3"), DeepSpeedSource)
    for path in (tmp_path / "theirs" / "global_step3").iterdir():
        torch.load(path, weights_only=True)  # nothing but plain types
    assert ranks.run(2, "deepspeed_cases", "reload", theirs, expected, 2, dtype) == [[], []]
    assert checkpoint_tool.main(["convert", theirs, ours, "--to", "dslaunch", "--ranks", "2"]) == 0
    assert ranks.run(3, "deepspeed_cases", "reload", ours, expected, 3, dtype) == [[], [], []]


@pytest.mark.parametrize(("stage", "dtype"), [(2, "bf16")])
def test_inspect(saved: Path, stage: int, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint_tool.main(["inspect", str(saved), "--verify", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    about = {"format": "dslaunch", "world_size": 2, "zero_stage": stage, "dtype": dtype, "global_steps": 3}
    assert about.items() <= told.items()
    assert (told["parameters"], told["damage"], told["tags"]) == (126, [], ["global_step3"])
    shard = next(saved.glob("*/shard-00001-*"))
    shard.unlink()
    assert checkpoint_tool.main(["inspect", str(saved), "--verify"]) == 1
    assert f"error: checkpoint file {shard} is missing" in capsys.readouterr().err
    assert checkpoint_tool.main(["consolidate", str(saved), str(saved / "out")]) == 2
    assert f"error: checkpoint file {shard} is missing" in capsys.readouterr().err
    assert not (saved / "out").exists()


def test_inspect_deepspeed(capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint_tool.main(["inspect", str(HERE / "stage3-fp32-world3")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1].strip() for line in out[1:2] + out[3:6]] == ["DeepSpeed", "3", "3", "fp32"]


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for case, is_said in (("stage0-bf16-world2", True), ("stage2-bf16-world2", False)):
        out = str(tmp_path / case)
        assert checkpoint_tool.main(["convert", str(HERE / case), out, "--to", "dslaunch"]) == 0
        assert ("only the weights are taken" in capsys.readouterr().err) == is_said


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint_tool.main(["inspect", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} has no file latest\nhint: name a directory of checkpoints\n"
    )
    with pytest.raises(ValueError, match="Unable to find 'latest' file at"):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path)
