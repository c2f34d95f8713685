"""The reference kernel against torch.optim, one tensor at a time."""

from __future__ import annotations

import pytest
import torch

from dslaunch.engine.ops.adamw import AdamWShard, AdamWStep, adamw_

NUM_STEPS = 5


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
@pytest.mark.parametrize("numel", [1, 1000, (1 << 18) + 3])
def test_equals_torch(decoupled: bool, weight_decay: float, numel: int, seed: int) -> None:
    torch.manual_seed(seed)
    theta = torch.randn(numel)
    param = torch.nn.Parameter(theta.clone())
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    oracle = kind([param], lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=weight_decay)
    low = torch.zeros(numel, dtype=torch.bfloat16)
    m, v = torch.zeros(numel), torch.zeros(numel)
    for step in range(1, NUM_STEPS + 1):
        gradient = torch.randn(numel)
        param.grad = gradient * 0.5
        oracle.step()
        scalars = AdamWStep(step, 0.01, 0.8, 0.95, 1e-6, weight_decay, decoupled)
        adamw_(AdamWShard(theta, m, v, gradient, low), scalars, torch.tensor(0.5))
        # torch rounds twice where kernels round once; in fp64 neither differs (tests/ops). Where decay
        # cancels a gradient, what is left of it is rounding: Adam makes part of a step (lr = 0.01) of that.
        gaps = (theta - param.detach()).abs()
        assert (gaps > 3e-5).sum() <= numel // 100_000
        assert gaps.max() < 0.001
        assert torch.equal(low, theta.bfloat16())
    torch.testing.assert_close(m, oracle.state[param]["exp_avg"])
    torch.testing.assert_close(v, oracle.state[param]["exp_avg_sq"])


def test_bf16_gradients_are_read_as_they_are() -> None:
    gradient = torch.randn(100).bfloat16()
    results = []
    for g in (gradient, gradient.float()):
        theta, m, v = torch.ones(100), torch.zeros(100), torch.zeros(100)
        adamw_(AdamWShard(theta, m, v, g, None), AdamWStep(1, 0.1, 0.9, 0.999, 1e-8, 0.0), None)
        results.append(theta)
    assert torch.equal(*results)


def test_the_first_step_is_the_learning_rate_with_bias_correction_and_not_without() -> None:
    sizes = []
    for correction in (True, False):
        theta = torch.zeros(1)
        scalars = AdamWStep(1, 0.1, 0.9, 0.99, 0.0, 0.0, bias_correction=correction)
        adamw_(AdamWShard(theta, torch.zeros(1), torch.zeros(1), torch.tensor([3.0]), None), scalars, None)
        sizes.append(-theta.item())
    assert sizes == pytest.approx([0.1, 0.1 * 0.1 / 0.01**0.5])


def test_padding_stays_zero() -> None:
    theta, m, v = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    adamw_(AdamWShard(theta, m, v, torch.zeros(4), None), AdamWStep(1, 0.1, 0.9, 0.99, 1e-8, 0.1), None)
    assert not theta.any()
