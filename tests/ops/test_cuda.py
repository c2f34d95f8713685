"""What only GPUs have: CUDA graphs, counters on the device, run-time compilation, more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch
from rule_cases import LOW, RULES, Data

from dslaunch.engine.ops import FusedAdamW, artifacts, build, cuda_modules, nvrtc
from dslaunch.engine.ops.adamw import AdamWShard, AdamWStep, adamw_
from dslaunch.engine.ops.norm import sum_of_squares
from dslaunch.engine.ops.sgd import SgdStep
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.ops.step import reference_step, step_

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)
LARGE = (1 << 31) + 12_345


def test_a_graph_of_a_step_replays_with_its_own_count_and_learning_rate(seed: int) -> None:
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(n, device=GPU)) for n in (1000, 77)]
    oracle = [torch.nn.Parameter(p.detach().clone()) for p in params]
    lr = torch.tensor(0.01, device=GPU)
    optimizer, plain = FusedAdamW(params, lr=lr, capturable=True), torch.optim.AdamW(oracle, lr=0.01)
    grads = [torch.randn_like(p) for p in params]
    for p, q, grad in zip(params, oracle, grads, strict=True):
        p.grad, q.grad = grad, grad.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        optimizer.step()
    plain.step()
    plain.step()
    for step in range(5):
        lr.fill_(0.01 / (step + 1))
        plain.param_groups[0]["lr"] = 0.01 / (step + 1)
        for q, grad in zip(oracle, grads, strict=True):
            grad.copy_(torch.randn_like(grad))
            assert q.grad is not None
            q.grad.copy_(grad)
        graph.replay()
        plain.step()
    for p, q in zip(params, oracle, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
    assert float(optimizer.state[params[0]]["step"]) == 7


def test_steps_left_out_do_not_count_on_the_gpu() -> None:
    p = torch.nn.Parameter(torch.randn(100, device=GPU))
    p.grad = torch.ones_like(p)
    optimizer = FusedAdamW([p], capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    scaler.scale(torch.zeros((), device=GPU))
    optimizer.step()
    p.grad[0] = float("inf")
    before = p.detach().clone()
    scaler.step(optimizer)
    assert torch.equal(before, p)
    assert float(optimizer.state[p]["step"]) == 1


def test_nothing_waits_for_the_gpu() -> None:
    data = [Data(rule(1), (1000, 50), (torch.bfloat16, torch.bfloat16), GPU) for rule in RULES.values()]
    scale, found_inf = torch.tensor(0.5, device=GPU), torch.tensor(0.0, device=GPU)
    for one, rule in zip(data, RULES.values(), strict=True):  # tables are sent and kernels loaded
        step_(rule(1), one.shards, scale, found_inf)
        sum_of_squares([shard.grad for shard in one.shards])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for one, rule in zip(data, RULES.values(), strict=True):
            step_(rule(2), one.shards, scale, found_inf)
            sum_of_squares([shard.grad for shard in one.shards])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("low", LOW)
def test_run_time_compilation_gives_the_same_kernels(
    name: str, low: torch.dtype | None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        nvrtc.nvrtc()
    except nvrtc.NoCompilerError:
        pytest.skip("no NVRTC")
    if build.nvcc() is None:
        pytest.skip("no nvcc")
    results = []
    for by_nvcc in (True, False):
        monkeypatch.setattr(cuda_modules, "_functions", {})
        monkeypatch.setattr(cuda_modules, "_modules", {})
        if by_nvcc:
            build.build_cuda({"adam": "adamw", "momentum": "sgd", "nesterov": "sgd"}.get(name, name))
        else:
            monkeypatch.setattr(cuda_modules, "cuda_name", lambda module: "none")
        torch.manual_seed(seed)
        data = Data(RULES[name](1), (5000, 33), (torch.float32, low), GPU)
        data.new_gradients()
        step_(RULES[name](1), data.shards)
        results.append([shard.master for shard in data.shards])
    assert all(map(torch.equal, *results))
    assert list(artifacts.cache_folder().glob("*-sm_*.cubin"))


def test_more_elements_than_32_bits_count() -> None:
    if torch.cuda.get_device_properties(0).total_memory < 60 << 30:
        pytest.skip("needs 60 GB of GPU memory")
    master, m, v = (torch.full((LARGE,), value, device=GPU) for value in (0.5, 0.0, 0.0))
    grad, param = (torch.zeros(LARGE, dtype=torch.bfloat16, device=GPU) for _ in "gp")
    ends = torch.tensor([0, 1, (1 << 31) - 1, 1 << 31, LARGE - 1], device=GPU)
    grad[ends] = 2.0
    scalars = AdamWStep(1, 0.1, 0.9, 0.999, 1e-8, 0.0)
    adamw_(AdamWShard(master, m, v, grad, param), scalars, None)
    assert torch.allclose(master[ends], torch.tensor(0.4, device=GPU))
    assert (param[ends] == torch.tensor(0.4, device=GPU).bfloat16()).all()
    assert int((master == 0.5).sum()) == LARGE - len(ends)
    assert int((param == 0.5).sum()) == LARGE - len(ends)
    assert sum_of_squares([grad]).item() == 4.0 * len(ends)
    small = torch.ones(5, device=GPU)
    tail = Shard(small, (), torch.ones(5, dtype=torch.bfloat16, device=GPU), None)
    step_(SgdStep(1.0, 0.0), [Shard(master, (), grad, None), tail])
    assert not small.any()
    assert torch.allclose(master[ends], torch.tensor(-1.6, device=GPU))


def test_a_stream_of_ones_own_is_used() -> None:
    """Steps are queued behind what the current stream has to do."""
    data, twin = (Data(RULES["adamw"](1), (1 << 20, 5), (torch.float32, None), GPU) for _ in "ab")
    stream = torch.cuda.Stream()
    for mine, other in zip(data.shards, twin.shards, strict=True):
        other.master.copy_(mine.master)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
        for shard in data.shards:
            shard.grad.fill_(1.0)
        step_(RULES["adamw"](1), data.shards)
    stream.synchronize()
    for shard in twin.shards:
        shard.grad.fill_(1.0)
    reference_step(RULES["adamw"](1), twin.shards)
    for mine, other in zip(data.shards, twin.shards, strict=True):
        torch.testing.assert_close(mine.master, other.master)
