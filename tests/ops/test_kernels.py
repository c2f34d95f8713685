"""Every kernel against its rule in fp64, over 100 steps on fresh random gradients.

Bounds. Masters start as N(0, 1) and are rounded once a step: 100 roundings of values below 8 are at most
100 * 2^-22 = 2.4e-5, and grow as a random walk does; 1e-5 is allowed (AdamW was seen to reach 2.2e-6). States
may be off by 1e-5 of the largest. The low-precision parameter is the rounded master, bit for bit. Lion's
steps are signs: where its momentum crosses zero, fp32 and fp64 may differ by a whole step, in one element of
a thousand.
"""

from __future__ import annotations

import pytest
import torch
from rule_cases import GRADS, LOW, LR, RULES, Data, split_twin

from dslaunch.engine.ops.remainder import join, settle_ties_, split_
from dslaunch.engine.ops.sgd import SgdStep
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.ops.step import reference_step, step_

NUM_STEPS = 100
SIZES = (0, 1, 3, 17, 1021, 4096, 12289)  # enough for a team of threads
MIXES = [(grad, low) for grad in GRADS for low in LOW]  # every fourth has one dtype throughout
GRAD_SCALE = 0.25


Mix = tuple[torch.dtype, torch.dtype | None]


def name_of(mix: Mix) -> str:
    return "-".join(str(dtype).removeprefix("torch.") for dtype in mix)


@pytest.mark.parametrize("mix", MIXES, ids=name_of)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("device", ["best", "cuda"], indirect=True)
def test_equals_fp64_in_every_mix_of_dtypes(name: str, mix: Mix, device: torch.device, seed: int) -> None:
    equals_fp64(name, mix, device, seed)


@pytest.mark.parametrize("mix", MIXES[::4], ids=name_of)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("device", ["baseline", "avx2"], indirect=True)
def test_equals_fp64_with_older_instructions(name: str, mix: Mix, device: torch.device, seed: int) -> None:
    equals_fp64(name, mix, device, seed)


def equals_fp64(name: str, mix: Mix, device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    offset = seed % 2  # one element in: aligned to nothing but the element
    data = Data(RULES[name](1), SIZES, mix, device, offset)
    scale, exact_scale = torch.tensor(GRAD_SCALE, device=device), torch.tensor(GRAD_SCALE)
    for step in range(1, NUM_STEPS + 1):
        data.new_gradients()
        step_(RULES[name](step), data.shards, scale)
        reference_step(RULES[name](step), data.exact, exact_scale)
    largest = [state.abs().amax() for state in data.exact[-1].states]  # of the longest tensor
    for shard, exact in zip(data.shards, data.exact, strict=True):
        told = f"seed {seed}, {exact.master.numel()} elements"
        error = (shard.master.cpu().double() - exact.master).abs()
        if name == "lion":
            assert (error > 1e-5).float().mean().nan_to_num() < 1e-3 or (error > 1e-5).sum() <= 1, told
            assert (error < 8 * LR).all(), told
        else:
            # Adam divides by its second moment: the few elements where that is nearly 0 magnify rounding.
            assert (error < 1e-4).all(), (told, error.max())
            assert (error > 1e-5).sum() <= max(1, error.numel() // 1000), told
        for state, exact_state, most in zip(shard.states, exact.states, largest, strict=True):
            assert ((state.cpu().double() - exact_state).abs() <= 1e-5 * most).all(), told
        if shard.param is not None:
            assert torch.equal(shard.param, shard.master.to(shard.param.dtype)), told


@pytest.mark.parametrize("name", RULES)
def test_nothing_outside_is_written(name: str, device: torch.device) -> None:
    data = Data(RULES[name](1), (37, 1024), (torch.bfloat16, torch.bfloat16), device, offset=3)
    data.new_gradients()
    step_(RULES[name](1), data.shards)
    for shard in data.shards:
        for view in (shard.master, *shard.states, shard.param):
            assert view is not None
            room = torch.empty(0, dtype=view.dtype, device=device).set_(view.untyped_storage())
            assert (room[:3] == 7).all()
            assert (room[3 + view.numel() :] == 7).all()


@pytest.mark.parametrize("name", [name for name in RULES if name != "lamb"])
def test_how_a_shard_is_cut_changes_no_bit(name: str, device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    whole = Data(RULES[name](1), (30011,), (torch.bfloat16, torch.bfloat16), device)
    torch.manual_seed(seed)
    parts = Data(RULES[name](1), (30011,), (torch.bfloat16, torch.bfloat16), device)
    for step in range(1, 4):
        torch.manual_seed(seed + step)
        whole.new_gradients()
        torch.manual_seed(seed + step)
        parts.new_gradients()
        step_(RULES[name](step), whole.shards)
        shard = parts.shards[0]
        for start, end in ((0, 1), (1, 5000), (5000, 12345), (12345, 30011)):
            assert shard.param is not None
            cut = slice(start, end)
            states = tuple(state[cut] for state in shard.states)
            piece = type(shard)(shard.master[cut], states, shard.grad[cut], shard.param[cut])
            step_(RULES[name](step), [piece])
    assert torch.equal(whole.shards[0].master, parts.shards[0].master), seed


@pytest.mark.parametrize("name", [name for name in RULES if name != "lamb"])
@pytest.mark.parametrize("device", ["baseline", "avx2", "avx512", "best", "cuda"], indirect=True)
def test_split_masters_are_whole_ones_bit_by_bit(name: str, device: torch.device, seed: int) -> None:
    for grad in GRADS:
        told = f"seed {seed}, {grad}"
        torch.manual_seed(seed)
        data = Data(RULES[name](1), SIZES, (grad, torch.bfloat16), device, seed % 4)
        for shard in data.shards:
            master = shard.master.bfloat16().float()
            shard.master.copy_(master)
            assert shard.param is not None
            shard.param.copy_(master)
        split = [split_twin(shard, seed % 3) for shard in data.shards]
        for step in range(1, 21):
            data.new_gradients()
            step_(RULES[name](step), data.shards)
            step_(RULES[name](step), split)
        for shard, twin in zip(data.shards, split, strict=True):
            assert shard.param is not None
            assert twin.param is not None
            assert torch.equal(shard.param, twin.param), told
            assert bits_equal(shard.master, join(twin.param, twin.master)), told
            for state, twin_state in zip(shard.states, twin.states, strict=True):
                assert bits_equal(state, twin_state), told


def test_ties_are_settled_where_parameters_are_bf16(device: torch.device) -> None:
    """Steps that move nothing, on all 2^17 patterns above an even bf16 number."""
    patterns = (torch.arange(1 << 17, dtype=torch.int32) + 0x3F800000).view(torch.float32).to(device)
    ties = (patterns.view(torch.int32) & 0x1FFFF) == 0x8000
    for step in (step_, reference_step):
        for low in (torch.bfloat16, torch.float16):
            shard = Data(RULES["sgd"](1), (patterns.numel(),), (torch.float32, low), device).shards[0]
            shard.master.copy_(patterns)
            step(SgdStep(0.0, 0.0), [shard])
            moved = patterns.view(torch.int32) - shard.master.view(torch.int32)
            assert torch.equal(moved, ties.int() if low == torch.bfloat16 else torch.zeros_like(moved))
            assert shard.param is not None
            assert torch.equal(shard.param, patterns.to(low))
        param = torch.empty_like(patterns, dtype=torch.bfloat16)
        rest = torch.empty_like(patterns, dtype=torch.int16)
        split_(patterns, param, rest)
        step(SgdStep(0.0, 0.0), [Shard(rest, (), torch.zeros_like(patterns), param)])
        settled = patterns.clone()
        settle_ties_(settled)
        assert bits_equal(join(param, rest), settled)


def bits_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first.contiguous().view(torch.int32), second.contiguous().view(torch.int32))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_gradient_spoils_one_element(name: str, bad: float, device: torch.device) -> None:
    if name == "lamb":
        pytest.skip("LAMB's trust ratio is of the whole tensor")
    for dtype in GRADS:
        data = Data(RULES[name](1), (1000,), (dtype, torch.bfloat16), device)
        data.new_gradients()
        data.shards[0].grad[123] = bad
        step_(RULES[name](1), data.shards)
        shard = data.shards[0]
        others = torch.arange(1000, device=device) != 123
        assert shard.param is not None
        assert shard.master[others].isfinite().all()
        spoiled = (shard.master[123], *(state[123] for state in shard.states))
        assert any(not bool(value.isfinite()) for value in spoiled)
        assert bool(shard.master[123].isnan()) == bool(shard.param[123].isnan())


def test_a_step_with_infinities_is_left_out_without_asking_the_host(device: torch.device) -> None:
    for name, rule in RULES.items():
        data = Data(rule(1), (1000, 50), (torch.float32, torch.bfloat16), device)
        data.new_gradients()
        before = [shard.master.clone() for shard in data.shards]
        step_(rule(1), data.shards, found_inf=torch.tensor(1.0, device=device))
        assert all(torch.equal(old, shard.master) for old, shard in zip(before, data.shards, strict=True)), (
            name
        )
        step_(rule(1), data.shards, found_inf=torch.tensor(0.0, device=device))
        assert not any(torch.equal(old, s.master) for old, s in zip(before, data.shards, strict=True)), name


def test_denormal_moments_are_flushed_on_cpus_and_the_thread_keeps_its_mode() -> None:
    moment = torch.full((100_000,), 1e-40)
    shard = Data(RULES["adamw"](1), (100_000,), (torch.float32, None), torch.device("cpu")).shards[0]
    shard.states[0].copy_(moment)
    shard.grad.zero_()
    step_(RULES["adamw"](1), [shard])
    assert not shard.states[0].any()
    assert (moment * 0.5).all()  # denormals still are numbers here


def test_tiny_halves_are_not_flushed(device: torch.device) -> None:
    """fp16's denormals are ordinary fp32 values, in both directions."""
    smallest = 2.0**-24
    data = Data(RULES["sgd"](1), (100,), (torch.float16, torch.float16), device)
    shard = data.shards[0]
    shard.grad.fill_(smallest)
    shard.master.zero_()
    rule = SgdStep(1.0, 0.0)
    step_(rule, data.shards)
    assert (shard.master == -smallest).all()
    assert shard.param is not None
    assert (shard.param == -smallest).all()


def test_every_half_is_read_and_rounded_as_torch_does(device: torch.device) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
        every = every[every.isfinite()]
        every = every[(every == 0) | (every.float().abs() > 1.2e-38)].to(device)
        data = Data(RULES["sgd"](1), (every.numel(),), (dtype, dtype), device)
        shard = data.shards[0]
        shard.grad.copy_(every)
        shard.master.zero_()
        step_(SgdStep(-1.0, 0.0), data.shards)
        assert torch.equal(shard.master, every.float())
        assert shard.param is not None
        assert torch.equal(shard.param, every)
        between = torch.randn(100_003, device=device).mul_(torch.tensor(10.0).pow(3))
        data = Data(RULES["sgd"](1), (between.numel(),), (torch.float32, dtype), device)
        shard = data.shards[0]
        shard.grad.copy_(between)
        shard.master.zero_()
        step_(SgdStep(-1.0, 0.0), data.shards)
        assert shard.param is not None
        assert torch.equal(shard.param, between.to(dtype))
