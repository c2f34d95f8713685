"""What is measured and said of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rank_pool import RankPool

from dslaunch.engine.comms_log import CommsLog
from dslaunch.engine.config import parse_config
from dslaunch.engine.config_observe import CommsLoggerConfig, CsvMonitorConfig, FlopsProfilerConfig
from dslaunch.engine.errors import EngineError
from dslaunch.engine.flops_profiler import get_model_profile
from dslaunch.engine.flops_report import ModuleProfile, StepProfile, render
from dslaunch.engine.monitors import CsvMonitor, Event, Monitors, TensorboardMonitor, open_monitors
from dslaunch.engine.throughput import Speed, Throughput
from dslaunch.engine.timers import PhaseTimers


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "behaviour",
    ["times_are_said", "collectives_are_logged", "everything_is_dumped", "the_forward_runs_under_autocast"],
)
def test_on_one_rank_and_on_two(ranks: RankPool, world: int, behaviour: str) -> None:
    ranks.run(world, "watch_cases", behaviour)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "behaviour",
    [
        "events_are_written",
        "loss_scales_are_written",
        "training_is_the_same_while_watched",
        "flops_are_profiled",
    ],
)
def test_with_files(ranks: RankPool, tmp_path: Path, world: int, behaviour: str) -> None:
    ranks.run(world, "watch_cases", behaviour, str(tmp_path))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_throughput_leaves_the_first_steps_out() -> None:
    clock = Clock()
    timer = Throughput(torch.device("cpu"), synchronized=True, clock=clock)
    for seconds in (50.0, 10.0):  # the warm-up
        clock.now += seconds
        timer.count(8)
        assert timer.read() is None
    for _ in range(4):
        clock.now += 2.0
        timer.count(8)
    assert timer.read() == Speed(average=4.0, current=4.0)
    assert timer.read() is None  # nothing new
    for _ in range(2):
        clock.now += 1.0
        timer.count(8)
    assert timer.read() == Speed(average=4.8, current=8.0)


def test_laps_add_up_until_taken() -> None:
    timers = PhaseTimers(torch.device("cpu"))
    for _ in range(3):
        with timers.lap("forward"):
            pass
    first = timers.take_ms(1)
    assert first["forward"] > 0
    assert first["backward"] == first["step"] == 0
    assert timers.take_ms(1)["forward"] == 0


def test_comms_table() -> None:
    log_of = CommsLog(CommsLoggerConfig(enabled=True, prof_all=False, prof_ops=("all_reduce",)), 4)
    assert log_of.wants("all_reduce")
    assert not log_of.wants("broadcast")
    named_by_torch = CommsLoggerConfig(prof_all=False, prof_ops=("all_gather_into_tensor",))
    assert CommsLog(named_by_torch, 4).wants("all_gather")
    log_of.add("all_reduce", 10_000_000, 0.010)
    log_of.add("all_reduce", 10_000_000, 0.030)
    log_of.add("broadcast", 500, 0.001)
    assert log_of.summary() == [
        "Comm. Op          Message Size   Count  Total (ms)  Avg (ms) algbw (Gbps) busbw (Gbps)".replace(
            " algbw", "  algbw"
        ).replace(" busbw", "  busbw"),
        "all_reduce            9.537 MB       2       40.00     20.00          4.00          6.00",
        "broadcast                500 B       1        1.00      1.00          0.00          0.00",
    ]


def test_csv_goes_on_in_the_same_file(tmp_path: Path) -> None:
    config = CsvMonitorConfig(True, str(tmp_path), "job")
    for x in (8, 16):
        monitors = Monitors([CsvMonitor(config)])
        monitors.write_events([("Mine/accuracy", 0.5, x)])
        monitors.close()
        monitors.write_events([("Mine/accuracy", 0.9, x)])  # dropped
    assert (tmp_path / "job/Mine_accuracy.csv").read_text().splitlines() == [
        "step,accuracy",
        "8,0.5",
        "16,0.5",
    ]


class FakeWriter:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def add_scalar(self, *args: object) -> None:
        self.calls.append(args)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def test_tensorboard_gets_scalars() -> None:
    writer = FakeWriter()
    monitor = TensorboardMonitor(writer)
    monitor.write([Event("Train/Samples/lr", 0.1, 8)])
    monitor.close()
    assert writer.calls == [("Train/Samples/lr", 0.1, 8), "flush", "close"]


WANDB = """
calls = []
class Run:
    def log(self, values, step): calls.append((values, step))
    def finish(self): calls.append("finish")
def init(**options):
    calls.append(options)
    return Run()
"""


def test_wandb_gets_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    config = parse_config({"wandb": {"enabled": True, "team": "t", "group": "g"}})
    assert not open_monitors(config, rank=1).enabled
    assert "wandb" not in sys.modules
    monitors = open_monitors(config, rank=0)
    monitors.write_events([("a", 1.0, 8), ("b", 2.0, 8), ("a", 3.0, 16)])
    monitors.close()
    wandb: ModuleType = sys.modules["wandb"]
    assert wandb.calls == [
        {"project": "deepspeed", "group": "g", "entity": "t"},
        ({"a": 1.0, "b": 2.0}, 8),
        ({"a": 3.0}, 16),
        "finish",
    ]
    monkeypatch.delitem(sys.modules, "wandb")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_package_is_an_error_on_every_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    with pytest.raises(EngineError) as caught:
        open_monitors(parse_config({"tensorboard": {"enabled": True}}), rank)
    assert (caught.value.what, caught.value.hint) == (
        "tensorboard is enabled in the config, but the package tensorboard is not installed",
        "pip install tensorboard, or use csv_monitor, which needs nothing",
    )


REPORT = """\
-------------------------- dslaunch flops profiler --------------------------
Profile Summary at step 5:
world size:               2
batch size per rank:      4 * 3
params of the model:      1.50 M
fwd MACs per rank:        6.00 GMACs
fwd flops per rank:       12.00 G
fwd latency:              100.00 ms
fwd FLOPS per rank:       120.00 GFLOPS
bwd latency:              200.00 ms
bwd FLOPS per rank:       180.00 GFLOPS
fwd+bwd FLOPS per rank:   160.00 GFLOPS
step latency:             20.00 ms
iter latency:             320.00 ms
samples/second:           75.00

Top 1 modules by depth, all of one class together:
depth 0:
    params      - Net: 1.50 M
    MACs        - Net: 2.00 GMACs
    fwd latency - Net: 30.00 ms
depth 1:
    params      - Block: 1.00 M
    MACs        - Block: 2.00 GMACs
    fwd latency - Block: 29.00 ms

module tree: parameters, MACs, forward time, FLOPS, each with its share of the model's
Net [1.50 M = 100.0% params, 2.00 GMACs = 100.0%, 30.00 ms = 100.0%, 133.33 GFLOPS]
  (a): Block [500.00 K = 33.3% params, 1.00 GMACs = 50.0%, 14.00 ms = 46.7%, 142.86 GFLOPS]
  (b): Block [500.00 K = 33.3% params, 1.00 GMACs = 50.0%, 15.00 ms = 50.0%, 133.33 GFLOPS]
  (out): Head [500.00 K = 33.3% params, 0 MACs = 0.0%, 1.00 ms = 3.3%, 0 FLOPS]
-----------------------------------------------------------------------------"""


def test_the_whole_flops_report() -> None:
    net = ModuleProfile(
        "",
        "Net",
        1_500_000,
        4 * 10**9,
        0.03,
        (
            ModuleProfile("a", "Block", 500_000, 2 * 10**9, 0.014),
            ModuleProfile("b", "Block", 500_000, 2 * 10**9, 0.015),
            ModuleProfile("out", "Head", 500_000, 0, 0.001),
        ),
    )
    profile = StepProfile(5, net, 2, 4, 3, 0.1, 0.2, 0.02)
    assert render(profile, FlopsProfilerConfig(recompute_fwd_factor=1.0)) == REPORT


def test_a_model_is_profiled_without_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Sequential(torch.nn.Linear(16, 4)))
    profile = get_model_profile(model, lambda: model(torch.ones(3, 8)))
    assert profile.flops == 2 * 3 * (8 * 16 + 16 * 4)
    inner = profile.children[1].children[0]
    assert (inner.kind, inner.num_params, inner.flops) == ("Linear", 68, 2 * 3 * 64)
    assert 0 < inner.seconds < profile.seconds
