"""Activation checkpointing: the same gradients, from inputs alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import dslaunch.engine as deepspeed
from dslaunch.engine import checkpointing
from dslaunch.engine.config_observe import ActivationCheckpointingConfig
from dslaunch.engine.errors import EngineError
from dslaunch.engine.rng_tracker import RngTracker


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    yield
    checkpointing._configured = None
    deepspeed.checkpointing.get_cuda_rng_tracker().reset()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))
        self.num_calls = 0

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        self.num_calls += 1
        tracker = deepspeed.checkpointing.get_cuda_rng_tracker()
        with tracker.fork("noise"):
            noise = torch.randn(4)
        return self.inner(x * noise) * scale  # type: ignore[no-any-return]


def gradients(block: Block, wrapped: bool) -> list[torch.Tensor]:
    deepspeed.checkpointing.get_cuda_rng_tracker().reset()
    deepspeed.checkpointing.get_cuda_rng_tracker().add("noise", 5)
    torch.manual_seed(1)
    block.zero_grad()
    x = torch.ones(3, 4, requires_grad=True)
    for _ in range(2):
        out = deepspeed.checkpointing.checkpoint(block, x, 2.0) if wrapped else block(x, 2.0)
        out.square().mean().backward()
    assert x.grad is not None
    return [x.grad, *(param.grad for param in block.parameters() if param.grad is not None)]


@pytest.mark.parametrize("in_cpu", [False, True])
def test_gradients_are_the_same_with_random_numbers_in_it(in_cpu: bool) -> None:
    block = Block()
    plain = gradients(block, wrapped=False)
    assert block.num_calls == 2
    assert not deepspeed.checkpointing.is_configured()
    deepspeed.checkpointing.configure(checkpoint_in_cpu=in_cpu)
    assert deepspeed.checkpointing.is_configured()
    again = gradients(block, wrapped=True)
    assert block.num_calls == 2 + 4  # two forwards, two recomputations
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    deepspeed.checkpointing.reset()


def test_in_cpu_needs_an_input_with_a_gradient() -> None:
    deepspeed.checkpointing.configure(checkpoint_in_cpu=True)
    with pytest.raises(EngineError) as caught:
        deepspeed.checkpointing.checkpoint(torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert caught.value.what == (
        "cpu_checkpointing: no input of the checkpointed function requires a gradient"
    )


def test_configure_reads_a_config_and_says_what_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dslaunch.engine")
    raw = {"activation_checkpointing": {"cpu_checkpointing": True, "partition_activations": True}}
    deepspeed.checkpointing.configure(None, raw, partition_activations=True, num_checkpoints=4)
    assert checkpointing._configured == ActivationCheckpointingConfig(cpu_checkpointing=True)
    assert caplog.messages == [
        "[Rank 0] checkpointing.configure: no effect here: partition_activations, num_checkpoints"
    ]


def test_profile_says_both_times(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dslaunch.engine")
    deepspeed.checkpointing.configure(profile=True)
    layer = torch.nn.Linear(2, 2)
    deepspeed.checkpointing.checkpoint(layer, torch.ones(1, 2)).sum().backward()
    assert [line.partition(" in ")[0] for line in caplog.messages] == [
        "[Rank 0] checkpointed function ran",
        "[Rank 0] checkpointed function recomputed",
    ]


def test_tracker_forks_and_goes_on() -> None:
    tracker = RngTracker()
    tracker.add("a", 7)
    torch.manual_seed(7)
    expected = [torch.rand(2), torch.rand(2)]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for numbers in expected:
        with tracker.fork("a"):
            assert torch.equal(torch.rand(2), numbers)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(EngineError, match="the random state a exists already"):
        tracker.add("a", 8)
    with pytest.raises(EngineError, match="there is no random state b"), tracker.fork("b"):
        pass


def test_seeding_makes_the_model_parallel_state() -> None:
    deepspeed.checkpointing.model_parallel_cuda_manual_seed(3)
    first = torch.rand(2)
    with deepspeed.checkpointing.get_cuda_rng_tracker().fork():
        other = torch.rand(2)
    torch.manual_seed(3 + 2718)
    assert torch.equal(torch.rand(2), other)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), first)
