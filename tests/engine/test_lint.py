"""The linter: whole outputs, exit codes, the memory of each stage, and that it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.engine.config_values import ZeroConfig
from dslaunch.engine.lint import main
from dslaunch.engine.memory_estimate import ModelStates, estimate

ROOT = Path(__file__).parents[2]

WRONG = """{
  "train_batch_size": 64, // of all ranks
  "train_micro_batch_size_per_gpu": 3,
  "fp16": {"enabled": false},
  "bf16": {"enabled": true, "loss_scale": 0},
  "optimizer": {"type": "AdamW", "params": {"lr": "3e-4"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10, "warmup_num_steps": 20}},
  "zero_optimization": {"stage": 1, "reduce_bukcet_size": 5, "contiguous_gradients": false},
  "of_somebody_else": 3
}"""

TOLD = """\
{file}: 4 errors, 3 warnings, 3 notes
error: unknown key zero_optimization.reduce_bukcet_size
hint: did you mean zero_optimization.reduce_bucket_size?
error: optimizer.params.lr: expects a number but got '3e-4'
hint: write optimizer.params.lr without quotes
error: unknown key of_somebody_else
hint: remove it; training only warns of it
error: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * \
gradient_acc_step * world_size 64 != 3 * 1 * 16 (world_size 16 comes from --world_size)
hint: give two of the three numbers, or a train_batch_size such as 48
warning: bf16.loss_scale: no effect, bf16 needs no loss scale: these are keys of fp16
warning: scheduler: it steers nothing unless the script passes an optimizer to initialize
hint: write an optimizer
warning: scheduler.params.total_num_steps: 10 steps end within the warm-up of 20
hint: lower warmup_num_steps
note: zero_optimization.contiguous_gradients: no effect, gradients always lie in contiguous buckets
note: {file} has comments: read here, but it is not JSON to other programs
note: gradient_clipping: gradients are clipped to a norm of 1.0 where the key is not given
"""

RIGHT = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW"},
    "zero_optimization": {"stage": 1},
}

RIGHT_TOLD = """\
{file}: 0 errors, 0 warnings, 0 notes
batch: train_batch_size 128 = train_micro_batch_size_per_gpu 2 * gradient_accumulation_steps 4 * world_size 16
memory of one of 16 ranks in GiB, for 7,000,000,000 parameters, bf16, gradients in bf16, AdamW; \
activations come on top:
  stage  parameters   gradients   optimizer     buffers       total
  0           13.04       13.04       65.19        0.00       91.27
* 1           13.04       13.04        4.07        0.00       30.15
  2           13.04        0.81        4.07        0.12       18.05
  3            0.81        0.81        4.07        0.22        5.92
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ds_config.json"


def test_everything_wrong_is_told_at_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(WRONG)
    assert main([str(file), "--world_size", "16"]) == 2
    assert capsys.readouterr().out == TOLD.format(file=file)


def test_what_it_takes_is_told_for_every_stage(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(json.dumps(RIGHT))
    assert main([str(file), "--world_size", "16", "--params", "7e9"]) == 0
    assert capsys.readouterr().out == RIGHT_TOLD.format(file=file)


def test_for_programs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(json.dumps({**RIGHT, "zero_opt": 1}))
    assert main([str(file), "--world_size", "2", "--params", "1K", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == [
        {
            "level": "error",
            "path": "zero_opt",
            "what": "unknown key zero_opt",
            "hint": "did you mean zero_optimization?",
        }
    ]
    assert told["batch"] == {"train": 16, "micro": 2, "accumulation": 4, "world_size": 2}
    assert told["memory"]["stage"] == 1
    assert told["memory"]["stages"][1] == {
        "stage": 1,
        "params_bytes": 2000,
        "grads_bytes": 2000,
        "optimizer_bytes": 5000,
        "buffers_bytes": 0,
        "host_bytes": 0,
        "total_bytes": 9000,
    }


def test_auto_is_an_error_unless_a_framework_fills_it_in(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = {"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    file.write_text(json.dumps({**RIGHT, **left}))
    assert main([str(file)]) == 2
    assert main([str(file), "--auto"]) == 0
    assert capsys.readouterr().out.endswith(
        f"{file}: 0 errors, 0 warnings, 2 notes\n"
        'note: optimizer.params.lr: "auto" is left to the framework\n'
        'note: train_batch_size: "auto" is left to the framework\n'
    )


def test_syntax_errors_and_missing_files(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('{"a" 1}')
    assert main([str(file)]) == 2
    assert capsys.readouterr().out == (
        f"{file}: 1 error, 0 warnings, 0 notes\n"
        f"error: {file}:1:6: not valid JSON: expecting ':' delimiter\n"
        "hint: comments and trailing commas are fine; look at that line and the one before it\n"
    )
    assert main(["no/such.json"]) == 2
    with pytest.raises(SystemExit) as caught:
        main([str(file), "--world_size", "many"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "error: --world_size: expects a count such as 16, 7e9 or 7B but got 'many'\n"
        "hint: dslaunchctl config --help\n"
    )


@given(st.integers(1, 10**9), st.integers(1, 512))
def test_memory_is_what_the_paper_says(num_params: int, num_ranks: int) -> None:
    """16, 4 + 12/N, 2 + 14/N and 14/N bytes a parameter (the paper: 16/N; parameters are cast from masters),
    apart from the stated buffers and rounding up. With split masters 14, 4 + 10/N, 2 + 12/N and 14/N.
    """
    last = 14 if num_ranks > 1 else 16
    expectations = (False, (16, 4, 2, 0), (0, 12, 14, last)), (True, (14, 4, 2, 0), (0, 10, 12, 14))
    for splits, *bytes_each in expectations:
        states = ModelStates(num_params, "bf16", "bf16", 2, splits)
        stages = estimate(states, num_ranks, ZeroConfig())
        for memory, whole, shared in zip(stages, *bytes_each, strict=True):
            expected = num_params * (whole + Fraction(shared, num_ranks))
            assert expected <= memory.total_bytes - memory.buffers_bytes < expected + 4
            assert (memory.buffers_bytes > 0) == (memory.stage >= 2 and num_ranks > 1)


def test_memory_in_fp32_and_with_one_state() -> None:
    fp32 = estimate(ModelStates(100, "fp32", "fp32", 2), 1, ZeroConfig())
    assert {memory.total_bytes for memory in fp32} == {1600}  # no masters of their own
    lion = estimate(ModelStates(100, "bf16", "fp32", 1), 4, ZeroConfig())
    assert [memory.total_bytes - memory.buffers_bytes for memory in lion] == [1400, 800, 500, 300]
    alone = estimate(ModelStates(2 * 10**9, "bf16", "bf16", 2), 1, ZeroConfig())
    assert [memory.total_bytes - memory.buffers_bytes for memory in alone][2:] == [32 * 10**9, 28 * 10**9]


def test_memory_with_offload(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stage 3 of a billion parameters on 4 ranks: 14 bytes a parameter, and the parameters, on the host."""
    both = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    file.write_text(json.dumps({**RIGHT, "zero_optimization": {"stage": 3, **both}}))
    assert main([str(file), "--world_size", "4", "--params", "1e9", "--json"]) == 0
    _, first, _, third = json.loads(capsys.readouterr().out)["memory"]["stages"]
    staging = 2 * 2 * (1 << 25) // 4
    assert (first["params_bytes"], first["optimizer_bytes"]) == (2e9, 0)
    assert first["host_bytes"] == 14e9 / 4 + staging
    assert (third["params_bytes"], third["optimizer_bytes"]) == (0, 0)
    assert third["host_bytes"] == 16e9 / 4 + staging
    assert main([str(file), "--world_size", "4", "--params", "1e9"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-5].endswith("total  on the host")
    assert shown[-1].split()[0:3] == ["*", "3", "0.00"]


def test_no_torch_is_needed(file: Path) -> None:
    file.write_text(json.dumps(RIGHT))
    code = (
        f"import sys; from dslaunch.engine.lint import main; main([{str(file)!r}])\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, check=False
    )
    assert ran.returncode == 0
