"""Runs on the ranks: what a run says of itself, and that it trains the same while it is watched."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.distributed as dist
from engine_cases import engine_of, logged, micro_step

import dslaunch.engine as deepspeed
from dslaunch.engine import checkpointing, comms_log
from dslaunch.engine.config_observe import ActivationCheckpointingConfig


def times_are_said() -> None:
    with logged() as lines:
        engine = engine_of(steps_per_print=2, wall_clock_breakdown=True, memory_breakdown=True)
        for _ in range(4):
            micro_step(engine)
    if dist.get_rank() != 0:
        assert lines == []
        return
    times = [line for line in lines if "time (ms)" in line]
    assert len(times) == 2
    assert re.fullmatch(
        r"\[Rank 0\] time \(ms\) \| fwd: \d+\.\d\d \| bwd: \d+\.\d\d \| step: \d+\.\d\d", times[0]
    )
    memory = [line for line in lines if line.startswith("[Rank 0] after ")]
    assert memory[:3] == [
        f"[Rank 0] after {phase}: MemAllocated=0.0GB, MaxMemAllocated=0.0GB"
        for phase in ("forward", "backward", "step")
    ]
    assert len(memory) == 12
    [speed] = [line for line in lines if "SamplesPerSec" in line]
    assert re.fullmatch(
        r"\[Rank 0\] epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=[\d.e+]+, "
        r"CurrSamplesPerSec=[\d.e+]+, MemAllocated=0.0GB, MaxMemAllocated=0.0GB",
        speed,
    )


def events_are_written(directory: str) -> list[float]:
    engine = engine_of(
        csv_monitor={"enabled": True, "output_path": directory, "job_name": "job"},
        gradient_accumulation_steps=2,
        wall_clock_breakdown=True,
        steps_per_print=3,
    )
    losses: list[float] = []
    for _ in range(3):
        total = 0.0
        for _ in range(2):
            loss = engine(torch.ones(2, 4)).square().mean()
            total += float(engine.backward(loss).detach())
            engine.step()
        losses.append(total)
    engine.watch.close()
    assert engine.monitor.enabled is False
    world = dist.get_world_size()
    dist.barrier()
    found = {path.name: path.read_text().splitlines() for path in Path(directory, "job").iterdir()}
    assert sorted(found) == [
        "Train_Samples_elapsed_time_ms_backward.csv",
        "Train_Samples_elapsed_time_ms_forward.csv",
        "Train_Samples_elapsed_time_ms_step.csv",
        "Train_Samples_lr.csv",
        "Train_Samples_train_loss.csv",
    ]
    assert found["Train_Samples_lr.csv"] == ["step,lr", *(f"{4 * world * n},0.01" for n in (1, 2, 3))]
    if dist.get_rank() == 0:
        told = [line.split(",") for line in found["Train_Samples_train_loss.csv"]]
        assert [x for x, _ in told] == ["step", *(str(4 * world * n) for n in (1, 2, 3))]
        torch.testing.assert_close([float(value) for _, value in told[1:]], losses)
    return losses


def loss_scales_are_written(directory: str) -> None:
    engine = engine_of(
        csv_monitor={"enabled": True, "output_path": directory, "job_name": "job"},
        fp16={"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2},
    )
    for _ in range(4):
        micro_step(engine)
    engine.watch.close()
    dist.barrier()
    rows = Path(directory, "job", "Train_Samples_loss_scale.csv").read_text().splitlines()
    world = dist.get_world_size()
    assert [row.split(",")[0] for row in rows[1:]] == [str(2 * world * n) for n in (1, 2, 3, 4)]
    assert [float(row.split(",")[1]) for row in rows[1:]] == [16.0, 16.0, 32.0, 32.0]


def collectives_are_logged() -> None:
    with logged() as lines:
        engine = engine_of(comms_logger={"enabled": True, "verbose": True, "debug": True})
        try:
            for _ in range(3):
                micro_step(engine)
            log_of = comms_log._active
            assert log_of is not None
            world = dist.get_world_size()
            counts: dict[str, int] = {}
            for (kind, _), total in log_of.totals.items():
                counts[kind] = counts.get(kind, 0) + total.count
                assert total.seconds > 0
            if world == 1:
                assert counts == {}
                return
            assert engine.optimizer is not None
            num_buckets = len(engine.optimizer.buckets)
            assert counts["reduce_scatter"] == counts["all_gather"] == 3 * num_buckets
            assert counts["all_reduce"] == 3  # the norm
            moved = sum(
                total.count * size for (kind, size), total in log_of.totals.items() if kind == "all_gather"
            )
            assert moved == 3 * sum(bucket.params.numel() * 4 for bucket in engine.optimizer.buckets)
            deepspeed.comm.log_summary()
        finally:
            comms_log.activate(None)
    if dist.get_rank() == 0:
        assert any(
            re.match(r"\[Rank 0\] comm op: all_gather \| time \(ms\): .* \| issued by: all_gather$", line)
            for line in lines
        )
        assert sum(line.startswith("[Rank 0] reduce_scatter ") for line in lines) >= 1


def training_is_the_same_while_watched(directory: str) -> None:
    everything: dict[str, object] = {
        "wall_clock_breakdown": True,
        "comms_logger": {"enabled": True},
        "flops_profiler": {"enabled": True, "profile_step": 2, "output_file": f"{directory}/flops.txt"},
        "csv_monitor": {"enabled": True, "output_path": directory},
    }
    ends = []
    for more in ({}, everything):
        torch.manual_seed(3)
        engine = engine_of(**more)
        for _ in range(4):
            micro_step(engine)
        ends.append([param.detach().clone() for param in engine.parameters()])
        engine.watch.close()
        comms_log.activate(None)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def flops_are_profiled(directory: str) -> None:
    path = Path(directory, "deep", "flops.txt")
    engine = engine_of(
        flops_profiler={"enabled": True, "profile_step": 2, "top_modules": 2, "output_file": str(path)}
    )
    for _ in range(3):
        micro_step(engine)
    assert all(not module._forward_hooks for module in engine.module.modules())
    if dist.get_rank() != 0:
        return
    text = path.read_text()
    assert "Profile Summary at step 2:" in text
    macs = 2 * (4 * 8 + 8 * 4)  # a batch of 2 through Linear(4, 8) and Linear(8, 4)
    assert re.search(rf"^fwd MACs per rank: +{macs} MACs$", text, re.MULTILINE)
    assert re.search(r"^params of the model: +76$", text, re.MULTILINE)
    assert re.search(r"^  \(0\): Linear \[40 = 52\.6% params, 64 MACs = 50\.0%, ", text, re.MULTILINE)


def everything_is_dumped() -> None:
    with logged() as lines:
        engine_of(dump_state=True, activation_checkpointing={"profile": True})
    assert deepspeed.checkpointing.is_configured()
    checkpointing.adopt(ActivationCheckpointingConfig())
    if dist.get_rank() == 0:
        text = "\n".join(line.removeprefix("[Rank 0] ") for line in lines)
        assert '"reduce_bucket_size": 64' in text
        assert '"max_live_parameters": 1000000000' in text


def the_forward_runs_under_autocast() -> None:
    engine = engine_of(torch_autocast={"enabled": True})
    out = engine(torch.randn(2, 4))
    assert out.dtype == torch.bfloat16
    engine.backward(out.float().mean())
    assert {param.dtype for param in engine.parameters()} == {torch.float32}
    engine.step()
    assert not torch.is_autocast_enabled("cpu")
