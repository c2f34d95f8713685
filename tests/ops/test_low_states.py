"""Moments in bf16, rounded at random: right on average, alike however elements are shared out."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from rule_cases import LOW, Data

from dslaunch.engine.ops import FusedAdamW, FusedLion, stochastic
from dslaunch.engine.ops.adamw import AdamWStep
from dslaunch.engine.ops.lion import LionStep
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.ops.step import reference_step, step_

NUM_SAMPLES = 1 << 16


def rule(step: int, beta1: float = 0.9, beta2: float = 0.999) -> AdamWStep:
    return AdamWStep(step, 0.01, beta1, beta2, 1e-8, 0.1)


def low_data(sizes: tuple[int, ...], device: torch.device, offset: int = 0) -> list[Shard]:
    """Shards of every parameter dtype with moments of bf16."""
    made = []
    for number, low in enumerate(LOW):
        for shard in Data(rule(1), sizes, (torch.bfloat16, low), device, offset).shards:
            states = tuple(_low(state, offset) for state in shard.states)
            made.append(Shard(shard.master, states, shard.grad, shard.param, 1000 * number, number))
    return made


def _low(state: torch.Tensor, offset: int) -> torch.Tensor:
    room = torch.zeros(state.numel() + offset, dtype=torch.bfloat16, device=state.device)
    return room[offset:]


def copies(shards: list[Shard]) -> list[Shard]:
    return copy.deepcopy(shards)


@pytest.mark.parametrize("value", [1.0, 1.0 + 2**-9, -1.3, 3e-5, 1e30, 1e-37, 0.0])
@pytest.mark.parametrize("half", [0, 16])
def test_rounding_is_right_on_average(value: float, half: int) -> None:
    """Over elements, and over steps of one element: within four standard deviations of the mean."""
    values = torch.full((NUM_SAMPLES,), value)
    over_elements = stochastic.noise(NUM_SAMPLES, 12345, 3, 7, values.device)
    over_steps = torch.cat([stochastic.noise(1, 5, 3, step, values.device) for step in range(4096)])
    for random in (over_elements, over_steps):
        rounded = stochastic.rounded(values[: len(random)], random >> half & 0xFFFF).double()
        exact = values[0].double()
        spacing = 2.0 ** (math.floor(math.log2(abs(value))) - 7) if value else 0.0
        assert ((rounded - exact).abs() <= spacing).all()
        assert abs(rounded.mean() - exact) <= 4 * spacing / 2 / math.sqrt(len(random))


def test_randomness_is_that_of_coins() -> None:
    """Every bit is set half the time, and no bit tells another, the neighbour's or the next step's."""
    here, later = (stochastic.noise(NUM_SAMPLES, 0, 1, step, torch.device("cpu")) for step in (1, 2))
    bits = torch.stack([here >> bit & 1 for bit in range(32)]).double()
    allowed = 5 * 0.5 / math.sqrt(NUM_SAMPLES)
    assert ((bits.mean(1) - 0.5).abs() < allowed).all()
    next_ones = torch.stack([later >> bit & 1 for bit in range(32)]).double()
    for other in (bits.roll(1, 1), next_ones):
        assert ((2 * bits - 1) @ (2 * other - 1).T / NUM_SAMPLES).abs().max() < 2 * allowed
    among = (2 * bits - 1) @ (2 * bits - 1).T / NUM_SAMPLES - torch.eye(32)
    assert among.abs().max() < 2 * allowed


@pytest.mark.parametrize("offset", [0, 1])
def test_kernels_round_as_torch_does_bit_for_bit(device: torch.device, offset: int, seed: int) -> None:
    """With betas of 0 the moments are the gradient and its square, whoever computes them."""
    torch.manual_seed(seed)
    shards = low_data((1, 3, 1021, 70_001), device, offset)
    for shard in shards:
        shard.grad.copy_(
            torch.randn(shard.grad.shape) * 10.0 ** torch.empty(shard.grad.shape).uniform_(-5, 1)
        )
        shard.grad[-1] = float("nan") if shard.grad.numel() > 1 else 1.0
    twins = copies(shards)
    for low in range(len(LOW)):
        some = slice(4 * low, 4 * low + 4)
        step_(rule(9, 0.0, 0.0), shards[some], torch.tensor(1 / 3, device=device))
        reference_step(rule(9, 0.0, 0.0), twins[some], torch.tensor(1 / 3, device=device))
    for mine, other in zip(shards, twins, strict=True):
        for state, expected in zip(mine.states, other.states, strict=True):
            assert state.dtype == torch.bfloat16
            torch.testing.assert_close(state, expected, rtol=0, atol=0, equal_nan=True)


def test_how_a_shard_is_cut_changes_no_bit_of_low_states(device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    (whole,) = low_data((30_011,), device)[:1]
    parts = copies([whole])[0]
    for step in range(1, 4):
        grad = torch.randn(30_011)
        for shard in (whole, parts):
            shard.grad.copy_(grad)
        step_(rule(step), [whole])
        for start, end in ((0, 1), (1, 5000), (5000, 12345), (12345, 30_011)):
            cut = slice(start, end)
            states = tuple(state[cut] for state in parts.states)
            piece = Shard(parts.master[cut], states, parts.grad[cut], None, whole.start + start, whole.stream)
            step_(rule(step), [piece])
    for mine, other in zip((whole.master, *whole.states), (parts.master, *parts.states), strict=True):
        assert torch.equal(mine, other), seed


def test_moments_stay_near_those_of_fp64(device: torch.device, seed: int) -> None:
    """A second moment that moves by a thousandth a step: rounded to nearest it would stand still."""
    torch.manual_seed(seed)
    shard = low_data((50_000,), device)[0]
    exact = [torch.zeros(50_000, dtype=torch.float64) for _ in "mv"]
    for step in range(1, 101):
        grad = torch.randn(50_000).bfloat16()
        shard.grad.copy_(grad)
        step_(rule(step), [shard])
        exact[0] += 0.1 * (grad.double() - exact[0])
        exact[1] += 0.001 * (grad.double() ** 2 - exact[1])
    m, v = (state.cpu().double() for state in shard.states)
    assert abs((v.mean() / exact[1].mean()).item() - 1) < 1e-3
    assert ((v - exact[1]).abs().mean() / exact[1].mean()).item() < 0.02
    assert ((m - exact[0]).abs().mean() / exact[0].abs().mean()).item() < 0.01
    assert abs((m - exact[0]).mean().item()) < 1e-4


def tokens(step: int) -> torch.Tensor:
    """[16, 24] of 32: each the sum of the two before it, with some noise."""
    generator = torch.Generator().manual_seed(step)
    made = torch.randint(32, (16, 24), generator=generator)
    for i in range(2, 24):
        noisy = torch.rand(16, generator=generator) < 0.05
        made[:, i] = torch.where(noisy, made[:, i], (made[:, i - 1] + made[:, i - 2]) % 32)
    return made


class TinyTransformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 48)
        self.position = torch.nn.Parameter(torch.randn(24, 48) * 0.1)
        layer = torch.nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 2)
        self.head = torch.nn.Linear(48, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1] - 1)
        hidden = self.body(self.embedding(ids[:, :-1]) + self.position[:-1], mask=mask, is_causal=True)
        return torch.nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), ids[:, 1:].flatten())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A team of threads takes longer for so small a model, and far longer on a loaded machine."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num)


def trained(moment_dtype: torch.dtype, num_steps: int) -> float:
    """The mean loss of the last tenth of the steps."""
    torch.manual_seed(0)
    model = TinyTransformer()
    optimizer = FusedAdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), moment_dtype=moment_dtype)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = model(tokens(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = losses[-num_steps // 10 :]
    return sum(last) / len(last)


@pytest.mark.usefixtures("one_thread")
def test_training_ends_at_the_loss_of_fp32_moments() -> None:
    full, low = (trained(dtype, 200) for dtype in (torch.float32, torch.bfloat16))
    assert full < 2.9  # of log 32 = 3.47: it has learned something
    assert abs(low / full - 1) < 0.01, (low, full)  # 2e-5 was seen


def test_state_dicts_keep_bf16_moments_and_take_either(device: torch.device) -> None:
    p, q = (torch.nn.Parameter(torch.ones(1000, device=device)) for _ in "pq")
    low, full = FusedAdamW([p], moment_dtype=torch.bfloat16), FusedAdamW([q])
    for optimizer, param in ((low, p), (full, q)):
        for _ in range(3):
            param.grad = torch.linspace(-1, 1, 1000, device=device)
            optimizer.step()
    assert low.state[p]["exp_avg_sq"].dtype == torch.bfloat16
    again = FusedAdamW([copy.deepcopy(p)], moment_dtype=torch.bfloat16)
    again.load_state_dict(copy.deepcopy(low.state_dict()))
    (r,) = again.param_groups[0]["params"]
    for optimizer, param in ((low, p), (again, r)):
        param.grad = torch.linspace(-1, 1, 1000, device=device)
        optimizer.step()
    assert torch.equal(p, r)
    assert torch.equal(low.state[p]["exp_avg_sq"], again.state[r]["exp_avg_sq"])
    widened = low.state_dict()
    widened["param_groups"][0].pop("moment_dtype")
    full.load_state_dict(widened)
    assert full.state[q]["exp_avg"].dtype == torch.float32
    assert torch.equal(full.state[q]["exp_avg"], low.state[p]["exp_avg"].float())


def test_other_rules_and_dtypes_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"moment_dtype torch\.float32 or torch\.bfloat16 but got torch\.float16"
    ):
        FusedAdamW([torch.nn.Parameter(torch.ones(1))], moment_dtype=torch.float16)
    shard = Shard(torch.ones(3), (torch.zeros(3, dtype=torch.bfloat16),), torch.ones(3), None)
    with pytest.raises(TypeError, match="lion expects states in fp32 but got bf16"):
        step_(LionStep(0.1, 0.9, 0.99, 0.0), [shard])
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = FusedLion([p])
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].dtype == torch.float32
