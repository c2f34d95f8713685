"""Checkpoints: exact, resharding, whole or absent, and loud when damaged."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankError, RankPool


@pytest.mark.parametrize(
    ("world", "stage", "dtype"),
    [
        (1, 0, "bf16"),
        (1, 3, "fp16"),
        (2, 0, "fp32"),
        (2, 1, "bf16"),
        (2, 2, "bf16"),
        (2, 2, "fp16"),
        (2, 3, "fp32"),
        (2, 3, "bf16"),
        (2, 3, "fp16"),
    ],
)
def test_resume_is_bit_exact(
    ranks: RankPool, tmp_path: Path, seed: int, world: int, stage: int, dtype: str
) -> None:
    directory = tmp_path / dtype
    ranks.run(world, "checkpoint_cases", "resume_is_exact", str(directory), stage, dtype == "bf16", seed)


def test_any_world_and_stage_reads_any_other(ranks: RankPool, tmp_path: Path, seed: int) -> None:
    """Frozen, tied and grouped parameters, 1 to 4 ranks, stages 0 to 3, three dtypes.

    A quarter of all pairs, other ones each time; DSLAUNCH_TEST_ALL=1 takes all 768.
    """
    every = bool(os.environ.get("DSLAUNCH_TEST_ALL"))
    for world in range(1, 5):
        ranks.run(world, "checkpoint_cases", "save_all", str(tmp_path), seed)
    for world in range(1, 5):
        told = ranks.run(world, "checkpoint_cases", "load_all", str(tmp_path), None if every else seed)
        assert told == [(4 * 3 * 4 * (4 if every else 1), [])] * world, seed


@pytest.mark.parametrize("stage", [0, 3])
def test_a_background_save_is_of_the_moment_of_the_call(
    ranks: RankPool, tmp_path: Path, seed: int, stage: int
) -> None:
    ranks.run(2, "checkpoint_cases", "background", str(tmp_path), stage, seed)


def test_a_background_save_that_fails_is_told_by_the_next_call(ranks: RankPool, tmp_path: Path) -> None:
    for said, remains in ranks.run(2, "checkpoint_failure_cases", "background_failure", str(tmp_path)):  # type: ignore[misc]
        assert said.startswith("the checkpoint bad was not saved: rank 0: [Errno ")  # type: ignore[has-type]
        assert not remains  # type: ignore[has-type]
    assert (tmp_path / "latest").read_text() == "better"


def test_the_last_checkpoints_are_kept(ranks: RankPool, tmp_path: Path) -> None:
    for remain in (".old.saving", ".global_step1.replaced", ".lonely.replaced"):
        (tmp_path / remain).mkdir()
    ranks.run(2, "checkpoint_cases", "keep_last", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        ".lonely.replaced",  # between two renames it would be the only one
        "best",
        "global_step3",
        "global_step4",
    ]


def test_a_restart_passes_over_what_is_damaged(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, "checkpoint_cases", "keep_last", str(tmp_path))
    damaged = tmp_path / "global_step4" / "shard-00001-of-00002.safetensors"
    flip(damaged)
    error = f"checkpoint file {damaged} is damaged: its checksum differs"
    by_hand, restarted = (
        ranks.run(2, "checkpoint_failure_cases", "restart", str(tmp_path), resume) for resume in (False, True)
    )
    hint = (
        "load another tag, or copy the file again from where it was saved; saved before: global_step3, best"
    )
    assert by_hand == [(f"{error}\nhint: {hint}", "")] * 2
    warning = f"[Rank 0] passing over the checkpoint global_step4: {error}"
    assert restarted == [(str(tmp_path / "global_step3"), warning), (str(tmp_path / "global_step3"), "")]
    for shard in tmp_path.glob("*/shard-00000-of-00002.safetensors"):
        shard.unlink()
    for said, _ in ranks.run(2, "checkpoint_failure_cases", "restart", str(tmp_path), True):  # type: ignore[misc]
        assert said.splitlines()[0] == (  # type: ignore[attr-defined]
            f"no checkpoint in {tmp_path} is whole: global_step4, global_step3, best are damaged"
        )


@pytest.mark.parametrize(("world", "num_nodes"), [(2, 2), (4, 2), (3, 3)])
def test_nodes_with_storage_of_their_own(
    ranks: RankPool, tmp_path: Path, seed: int, world: int, num_nodes: int
) -> None:
    assert ranks.run(world, "checkpoint_cases", "on_nodes", str(tmp_path), num_nodes, seed) == [[]] * world
    shards = {path.parents[1].name for path in tmp_path.glob("*/stage2/shard-00000-*")}
    assert shards == {"host0"}


AT_EXIT = """
import sys, torch, torch.distributed as dist
import dslaunch.engine as deepspeed
config = {"train_batch_size": 2, "optimizer": {"type": "Adam"}, "checkpoint": {"async": True}}
engine = deepspeed.initialize(model=torch.nn.Linear(512, 512), config=config)[0]
engine.save_checkpoint(sys.argv[1])
dist.destroy_process_group()
"""


def test_a_background_save_is_finished_at_exit(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-W", "error", "-c", AT_EXIT, str(tmp_path)]
    processes = [
        subprocess.Popen(command, env={**environ, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")
    ]
    assert [process.wait(100) for process in processes] == [0, 0]
    assert (tmp_path / "latest").read_text() == "global_step0"
    assert not list(tmp_path.glob(".*"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_files(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, "checkpoint_cases", "save", str(tmp_path), 1, True, 1)
    assert (tmp_path / "latest").read_text() == "world2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "world2", "zero_to_fp32.py"]
    assert sorted(path.name for path in (tmp_path / "world2").iterdir()) == [
        "manifest.json",
        "shard-00000-of-00002.safetensors",
        "shard-00001-of-00002.safetensors",
        "state.pt",
    ]
    manifest = json.loads((tmp_path / "world2" / "manifest.json").read_text())
    assert manifest["counters"] == {
        "global_steps": 2,
        "global_samples": 48,
        "skipped_steps": 0,
        "optimizer_steps": 2,
    }
    assert manifest["aliases"] == {"again.weight": "middle.weight"}
    assert manifest["params"]["middle.weight"]["shape"] == [17, 17]
    assert manifest["kinds"] == [["master", "exp_avg", "exp_avg_sq"]] * 2
    assert manifest["whole"].keys() == {"inner.weight", "norm.bias", "seen"}  # frozen, and the buffer


@pytest.fixture(scope="module")
def saved(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    ranks.run(2, "checkpoint_cases", "save", str(directory), 1, False, 1)
    return directory


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("shard-00000-of-00002.safetensors", flip, "is damaged: its checksum differs"),
        ("shard-00001-of-00002.safetensors", flip, "is damaged: its checksum differs"),
        ("state.pt", flip, "is damaged: its checksum differs"),
        ("manifest.json", flip, "is damaged"),
        (
            "shard-00000-of-00002.safetensors",
            lambda path: os.truncate(path, 100),
            "is damaged: 100 bytes",
        ),
        ("shard-00000-of-00002.safetensors", Path.unlink, "is missing"),
    ],
    ids=["shard", "other", "state", "manifest", "truncated", "missing"],
)
def test_damage_is_one_error_that_names_the_file(
    ranks: RankPool, saved: Path, tmp_path: Path, world: int, name: str, damage: object, words: str
) -> None:
    subprocess.run(["cp", "-r", f"{saved}/.", str(tmp_path)], check=True)
    damaged = tmp_path / "world2" / name
    damage(damaged)  # type: ignore[operator]
    for text, changed in ranks.run(world, "checkpoint_failure_cases", "refuse_to_load", str(tmp_path)):  # type: ignore[misc]
        assert f"checkpoint file {damaged} {words}" in text  # type: ignore[operator]
        assert changed == []


def test_a_missing_tag_lists_those_that_are_there(ranks: RankPool, saved: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", f"{saved}/.", str(tmp_path)], check=True)
    (tmp_path / "latest").write_text("elsewhere")
    text, _ = ranks.run(1, "checkpoint_failure_cases", "refuse_to_load", str(tmp_path))[0]  # type: ignore[misc]
    assert text == f"there is no checkpoint elsewhere in {tmp_path}\nhint: tags there: world2"


def test_a_death_while_saving_leaves_the_previous_one(ranks: RankPool, tmp_path: Path, seed: int) -> None:
    with pytest.raises(RankError, match="died: 9"):
        ranks.run(2, "checkpoint_failure_cases", "die_while_saving", str(tmp_path), seed)
    assert (tmp_path / ".global_step2.saving").is_dir()
    assert ranks.run(2, "checkpoint_failure_cases", "loads_what_was_saved_last", str(tmp_path), seed) == [
        3,
        3,
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step2", "latest", "zero_to_fp32.py"]


SAVE_FOREVER = """
import sys, torch
import dslaunch.engine as deepspeed
engine = deepspeed.initialize(model=torch.nn.Linear(64, 64), config={
    "train_batch_size": 1, "optimizer": {"type": "Adam"}, "log_level": "error"})[0]
while True:
    engine.global_steps += 1
    engine.save_checkpoint(sys.argv[1], tag="only", client_state={"step": engine.global_steps})
    print("saved", engine.global_steps, flush=True)
"""


def test_killed_at_any_moment_a_whole_checkpoint_is_left(ranks: RankPool, tmp_path: Path) -> None:
    for after in (1, 4, 7):  # saves over one and the same tag
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        saved = (int(line.split()[1]) for line in process.stdout if line.startswith("saved "))
        for _ in range(after):
            last = next(saved)
        process.send_signal(signal.SIGKILL)
        last = max([last, *saved])
        process.wait()
        process.stdout.close()
        steps = ranks.run(1, "checkpoint_cases", "steps_of_a_linear", str(tmp_path))[0]
        assert steps in (last, last + 1)


def test_parts(ranks: RankPool, tmp_path: Path, seed: int) -> None:
    ranks.run(2, "checkpoint_cases", "parts", str(tmp_path), seed)


def test_frozen_parameters_can_be_left_out(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(1, "checkpoint_cases", "frozen_parameters_can_be_left_out", str(tmp_path))


def test_what_rank_0_cannot_write_is_an_error_on_all(ranks: RankPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = ranks.run(2, "checkpoint_failure_cases", "a_disk_that_refuses", str(tmp_path / "file" / "below"))
    assert said[0] == said[1]
    assert str(said[0]).startswith("rank 0: [Errno 20] Not a directory")


def test_between_the_two_renames_the_replaced_one_is_read(
    ranks: RankPool, saved: Path, tmp_path: Path
) -> None:
    subprocess.run(["cp", "-r", f"{saved}/.", str(tmp_path)], check=True)
    (tmp_path / "world2").rename(tmp_path / ".world2.replaced")
    ranks.run(1, "checkpoint_cases", "load", str(tmp_path), "world2", 1, False)


def test_refusals_leave_nothing_behind(ranks: RankPool, tmp_path: Path) -> None:
    for said in ranks.run(2, "checkpoint_failure_cases", "refuse_to_save", str(tmp_path)):
        assert said[0].startswith(
            "client_state (or the scheduler's state) holds what cannot be loaded safely: "
        )  # type: ignore[index]
        assert said[1:] == [  # type: ignore[index]
            "ranks save under different tags: rank0, rank1",
            "the tag 'a/b' cannot name a directory",
            "the tag '.hidden' cannot name a directory",
        ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", [1, 3])
def test_saving_and_loading_need_no_memory_to_speak_of(ranks: RankPool, tmp_path: Path, stage: int) -> None:
    said = ranks.run(2, "checkpoint_memory_cases", "extra_memory", str(tmp_path), stage)
    for shard_bytes, saving, loading in said:  # type: ignore[misc]
        assert shard_bytes == 12 * 24 * 1024 * 1024 / 2  # type: ignore[has-type]
        assert saving < shard_bytes / 10  # type: ignore[has-type]
        # Below stage 3 50 MB of parameters are gathered; gloo keeps up to 25 MB, of a larger model too.
        assert loading < (shard_bytes / 10 if stage == 3 else 32e6)  # type: ignore[has-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(disk)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_harms_nothing(ranks: RankPool, small_disk: Path, asynchronous: bool) -> None:
    said = ranks.run(2, "checkpoint_failure_cases", "full_disk", str(small_disk), asynchronous)
    for what, wrong in said:  # type: ignore[misc]
        assert "No space left on device" in what  # type: ignore[has-type]
        assert wrong == []  # type: ignore[has-type]


def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    """A short run of what `checkpoint_torture.py` does 200 times."""
    torture = Path(__file__).with_name("checkpoint_torture.py")
    run = subprocess.run(
        [sys.executable, str(torture), str(tmp_path / "it"), "--kills", "6", "--seed", str(seed)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["lives"] == 6  # after lines of gloo's with torch 2.9


@pytest.mark.parametrize("world", [1, 3])
def test_a_model_is_loaded_without_an_optimizer(ranks: RankPool, tmp_path: Path, world: int) -> None:
    said = ranks.run(world, "checkpoint_cases", "without_an_optimizer", str(tmp_path))
    assert said == [[]] * world
