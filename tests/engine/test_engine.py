"""Single behaviours of the engine, on real ranks."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rank_pool import RankPool


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "behaviour",
    [
        "nonfinite_steps_are_left_out",
        "parameters_and_gradients_are_views",
        "optimizer_state_is_replicated_at_stage_0",
        "torch_schedulers_and_lr_edits_take_effect",
        "client_optimizer_and_its_scheduler",
        "two_losses_without_overlap",
        "state_dict_of_the_optimizer",
        "no_sync_leaves_everything_to_the_boundary",
        "script_sets_the_boundary",
        "progress_lines",
        "a_cast_after_initialize_is_an_error",
        "parameters_that_share_memory_are_refused",
        "a_model_in_bf16_is_trained_in_it",
        "other_parameters_need_the_config_to_say_so",
        "without_an_optimizer_the_engine_evaluates",
        "training_data_is_shared_out",
    ],
)
def test_on_one_rank_and_on_two(ranks: RankPool, world: int, behaviour: str) -> None:
    ranks.run(world, "engine_cases", behaviour)


@pytest.mark.parametrize(
    "behaviour",
    [
        "reduce_scatter_may_be_missing",
        "second_backward_after_averaging_is_an_error",
        "different_models_are_an_error_on_every_rank",
    ],
)
def test_on_two_ranks(ranks: RankPool, behaviour: str) -> None:
    ranks.run(2, "engine_cases", behaviour)


@pytest.mark.parametrize("who", [0, 1])
def test_a_save_by_one_rank_alone_ends_in_seconds(
    ranks: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: int
) -> None:
    monkeypatch.setenv("DSLAUNCH_CHECKPOINT_TIMEOUT_S", "1")
    ranks.close()  # the next ranks start with that variable
    took_s = ranks.run(2, "engine_cases", "a_save_by_one_rank_alone_is_an_error", str(tmp_path), who)[who]
    ranks.close()
    assert isinstance(took_s, float)
    assert took_s < 5
    assert list(tmp_path.iterdir()) == []


ENVIRON = {
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def run_script(text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        env={**ENVIRON, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


TRAIN_ALONE = """
import sys, torch
import dslaunch.engine as deepspeed
assert not torch.cuda.is_initialized()
deepspeed.init_distributed()
deepspeed.init_distributed()
model = torch.nn.Linear(3, 1)
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_batch_size": 4, "optimizer": {"type": "Adam"}})
engine.backward(engine(torch.ones(4, 3)).mean()); engine.step()
assert engine.in_features == 3 and engine.world_size == torch.distributed.get_world_size() == 1
assert list(engine.state_dict()) == ["module.weight", "module.bias"]
assert "torch._dynamo" not in sys.modules
print("steps", engine.global_steps)
"""


def without_gloo(stdout: str) -> str:
    """torch 2.9's gloo says on stdout whom it is connected to."""
    return "".join(line for line in stdout.splitlines(keepends=True) if not line.startswith("[Gloo]"))


def test_a_script_without_a_launcher_trains_alone() -> None:
    done = run_script(TRAIN_ALONE)
    assert (done.returncode, without_gloo(done.stdout)) == (0, "steps 1\n"), done.stderr
    assert done.stderr.count("\n") == 1
    assert "world 1 on cpu, 4 parameters in 1 buckets" in done.stderr


USER_SCRIPT = """
import argparse, torch
import dslaunch.engine as deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = deepspeed.add_config_arguments(parser).parse_args()
model = torch.nn.Linear(4, 1)
engine, optimizer, _, scheduler = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters())
for step in range(6):
    loss = engine(torch.full((2, 4), engine.global_rank + 1.0)).square().mean()
    engine.backward(loss)
    engine.step()
print(engine.global_rank, engine.global_steps, engine.train_batch_size(), scheduler.last_batch_iteration)
if engine.global_rank == engine.world_size - 1:
    raise SystemExit(3)
"""

DS_CONFIG = """{
  "train_micro_batch_size_per_gpu": 2,  // train_batch_size follows
  "gradient_accumulation_steps": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
  "zero_optimization": {"stage": 1},
}"""


def test_a_users_script_on_two_launched_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(USER_SCRIPT)
    (tmp_path / "ds_config.json").write_text(DS_CONFIG)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "train.py",
                "--deepspeed",
                "--deepspeed_config",
                "ds_config.json",
            ],
            env={**ENVIRON, **common, "RANK": rank, "LOCAL_RANK": rank},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    ended = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 3], ended
    assert [without_gloo(out) for out, _ in ended] == ["0 3 8 2\n", "1 3 8 2\n"]
    assert "batch 8 = 2 * 2 * 2" in ended[0][1]
    assert ended[1][1] == ""


def test_half_an_environment_names_what_is_missing() -> None:
    done = run_script(
        "import dslaunch.engine as d; d.init_distributed()", RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "dslaunch.engine.errors.EngineError: cannot join the job: LOCAL_RANK, MASTER_PORT not set in the "
        "environment (RANK, WORLD_SIZE, MASTER_ADDR set)",
        "hint: start the script with dslaunch, which sets all five; unset them all to train in one process",
    ]
