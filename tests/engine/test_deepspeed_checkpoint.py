"""Checkpoints that the real DeepSpeed wrote: read without DeepSpeed, and without running what they name."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from rank_pool import RankPool

from dslaunch.engine import CheckpointError
from dslaunch.engine.deepspeed_source import DeepSpeedSource
from dslaunch.engine.deepspeed_unpickle import Unread, load_file

HERE = Path(__file__).parent / "deepspeed_checkpoints"
CASES = sorted(path.name for path in HERE.iterdir() if path.is_dir())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("world", "stage"), [(1, 1), (3, 2), (2, 3)])
def test_loading(ranks: RankPool, case: str, world: int, stage: int) -> None:
    assert ranks.run(world, "deepspeed_cases", "load", case, stage) == [[]] * world


def test_stages_bring_the_same_moments(ranks: RankPool) -> None:
    """Where DeepSpeed does not tell them, they are those of another stage of the same training."""
    numbered = ranks.run(1, "deepspeed_cases", "states", "stage0-fp32-world2")[0]
    flat = ranks.run(1, "deepspeed_cases", "states", "stage1-fp32-world2")[0]
    assert isinstance(numbered, dict)
    assert isinstance(flat, dict)
    for name, value in numbered.items():
        assert torch.allclose(value, flat[name], rtol=1e-3, atol=1e-7), name


class Trap:
    """Pickles as a call that must not happen."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("__import__('pathlib').Path('sprung').touch()",)


def test_nothing_that_a_file_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"trap": Trap(), "path": Path("x"), "weights": torch.arange(3.0), "kept": [1, "a", (None,)]}
    torch.save(content, tmp_path / "new.pt")
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("new.pt", "old.pt"):
        found = load_file(tmp_path / name)
        assert found["kept"] == [1, "a", (None,)]
        assert torch.equal(found["weights"], torch.arange(3.0))
        assert isinstance(found["trap"], Unread)
        assert isinstance(found["path"], Unread)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(Trap()))
    assert (tmp_path / "sprung").exists()  # so it would have been


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", Path.unlink, "is missing"),
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", Path.unlink, "1 *_optim_states.pt files, but 2 ranks"),
        ("mp_rank_00_model_states.pt", Path.unlink, "is missing"),
        ("mp_rank_00_model_states.pt", lambda path: path.write_bytes(b"PK"), "is damaged"),
        ("mp_rank_00_model_states.pt", lambda path: path.write_bytes(path.read_bytes()[:999]), "is damaged"),
        ("zero", Path.mkdir, "is a universal checkpoint of DeepSpeed's"),
        ("mp_rank_01_model_states.pt", Path.touch, "mp_rank_01_model_states.pt: a model that is split"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, damage: object, words: str) -> None:
    directory = tmp_path / "global_step3"
    shutil.copytree(HERE / "stage2-fp16-world2" / "global_step3", directory)
    damage(directory / name)  # type: ignore[operator]
    with pytest.raises(CheckpointError) as caught:
        DeepSpeedSource(directory)
    assert words in caught.value.what
    assert str(directory) in caught.value.what
