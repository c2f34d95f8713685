"""What only GPUs have: CUDA graphs, counters on the device, run-time compilation, more than 2^31 elements."""

from __future__ import annotations

import itertools

import pytest
import torch
from rule_cases import LOW, MAKES, RULES, Data

from dslaunch.engine.ops import FusedAdamW, FusedSGD, artifacts, build, cuda_modules, nvrtc
from dslaunch.engine.ops.adamw import AdamWShard, AdamWStep, adamw_
from dslaunch.engine.ops.norm import sum_of_squares
from dslaunch.engine.ops.sgd import SgdStep
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.ops.step import reference_step, step_

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)
LARGE = (1 << 31) + 12_345


@pytest.mark.parametrize("shapes", [(100_003,), (1000, 77, 0, 4096)], ids=["flat", "many"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MAKES)
def test_a_graph_of_a_step_replays_with_its_own_count_and_learning_rate(
    name: str, dtype: torch.dtype, shapes: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(n, device=GPU).to(dtype)) for n in shapes]
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    lr, scale, found_inf = (torch.tensor(x, device=GPU) for x in (0.01, 2.0, 0.0))
    optimizer, plain = MAKES[name](params, lr=lr, capturable=True), MAKES[name](twins, lr=0.01)
    for p, q in zip(params, twins, strict=True):
        p.grad, q.grad = torch.randn_like(p), torch.zeros_like(q)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def both() -> None:
        for p, q in zip(params, twins, strict=True):
            assert p.grad is not None
            assert q.grad is not None
            q.grad.copy_(p.grad / scale)
        if not float(found_inf):
            plain.step()

    optimizer.grad_scale, optimizer.found_inf = scale, found_inf
    with torch.cuda.stream(stream):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # on a stream that has no table of these tensors yet
        optimizer.step()
    for number in range(5):
        lr.fill_(0.01 / (number + 1))
        scale.fill_(2.0**number)
        found_inf.fill_(float(number == 2))
        plain.param_groups[0]["lr"] = 0.01 / (number + 1)
        for p in params:
            assert p.grad is not None
            p.grad.normal_()
        graph.replay()
        both()
    for p, q in zip(params, twins, strict=True):
        masters = optimizer.state[p].get("master", p), plain.state[q].get("master", q)
        torch.testing.assert_close(*masters, rtol=1e-5, atol=1e-5)
    if "step" in optimizer.state[params[0]]:
        assert float(optimizer.state[params[0]]["step"]) == 5


def test_a_graph_rounds_bf16_moments_anew_in_every_step() -> None:
    params = [torch.nn.Parameter(torch.ones(n, device=GPU)) for n in (50_000, 77)]
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer = FusedAdamW(params, capturable=True, moment_dtype=torch.bfloat16)
    plain = FusedAdamW(twins, moment_dtype=torch.bfloat16)
    for p, q in zip(params, twins, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        plain.step()
    for p, q in zip(params, twins, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            mine, other = optimizer.state[p][name], plain.state[q][name]
            assert mine.dtype == torch.bfloat16
            # The GPU's own scalars may differ in their last bit, and tip one rounding of thousands.
            assert (mine != other).float().mean() < 1e-3


def test_a_graph_keeps_what_other_steps_push_out() -> None:
    """Its table of tensors outlives the few that are kept for reuse."""
    params = [torch.nn.Parameter(torch.ones(n, device=GPU)) for n in (1000, 77)]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = FusedSGD(params, lr=1.0, capturable=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    others = [torch.zeros(8, device=GPU) for _ in range(80)]
    for first, second in itertools.pairwise(others):
        rule = SgdStep(1.0, 0.0)
        step_(rule, [Shard(first, (), torch.ones_like(first), None), Shard(second, (), first, None)])
    optimizer.step()  # the same tensors, on a stream that has not seen them
    graph.replay()
    graph.replay()
    assert all(bool((p == -2).all()) for p in params)


def test_mixed_dtypes_count_a_step_once() -> None:
    params = [torch.nn.Parameter(torch.ones(9, device=GPU, dtype=t)) for t in (torch.float32, torch.bfloat16)]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = FusedAdamW(params, capturable=True)
    for _ in range(3):
        optimizer.step()
    assert float(optimizer.state[params[0]]["step"]) == float(optimizer.state[params[1]]["step"]) == 3


def test_norms_are_captured_too() -> None:
    grads = [torch.zeros(n, device=GPU) for n in (5000, 3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = sum_of_squares(grads)
    for value in (1.0, 2.0):
        for grad in grads:
            grad.fill_(value)
        graph.replay()
        assert total.item() == 5003 * value**2


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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
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
