"""Which optimizers of scripts can step shards, and what is said of the others."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from rank_pool import RankPool

from dslaunch.engine.errors import EngineError
from dslaunch.engine.optimizer_client import adopt, adopted, client_state

Step = Callable[[torch.nn.Parameter, dict[str, object], dict[str, object]], None]


def optimizer(step: Step, **group: object) -> torch.optim.Optimizer:
    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for found in self.param_groups:
                for param in found["params"]:
                    step(param, self.state[param], found)

    return Own([torch.nn.Parameter(torch.ones(3))], {"lr": 0.1, **group})


def plain(param: torch.nn.Parameter, state: dict[str, object], group: dict[str, object]) -> None:
    param.sub_(param.grad, alpha=group["lr"])  # type: ignore[arg-type,call-overload]


def normed(param: torch.nn.Parameter, state: dict[str, object], group: dict[str, object]) -> None:
    assert param.grad is not None
    param.sub_(param.grad / param.grad.norm())


def by_rows(param: torch.nn.Parameter, state: dict[str, object], group: dict[str, object]) -> None:
    if param.dim() > 1:
        state["mean"] = torch.zeros_like(param)
    plain(param, state, group)


def in_the_group(param: torch.nn.Parameter, state: dict[str, object], group: dict[str, object]) -> None:
    group["seen"] = int(group["seen"]) + 1  # type: ignore[call-overload]


def with_a_mean(param: torch.nn.Parameter, state: dict[str, object], group: dict[str, object]) -> None:
    assert param.grad is not None
    state["mean"] = state.get("mean", 0) + param.grad.mean()  # type: ignore[operator]
    param.sub_(state["mean"])  # type: ignore[arg-type]


def at_random(param: torch.nn.Parameter, state: dict[str, object], group: dict[str, object]) -> None:
    param.add_(torch.rand_like(param))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (in_the_group, "it keeps state in its parameter groups"),
        (with_a_mean, "it keeps mean from step to step, which is not of single elements"),
        (at_random, "it keeps random numbers from step to step, which is not of single elements"),
    ],
)
def test_refusals(step: Step, why: str) -> None:
    with pytest.raises(EngineError) as caught:
        adopt(optimizer(step, seen=0))
    assert caught.value.what == f"the optimizer Own cannot step shards: {why}"


@pytest.mark.parametrize(("step", "exact"), [(plain, True), (normed, False), (by_rows, False)])
def test_whether_shards_end_as_whole_tensors(step: Step, exact: bool) -> None:
    assert adopt(optimizer(step))[1] == exact


def test_adafactor_sees_shards_as_vectors() -> None:
    """What it keeps of all elements, their root mean square, it works out anew in every step."""
    client = transformers.Adafactor([torch.nn.Parameter(torch.ones(3))], lr=1e-3, relative_step=False)
    assert not adopt(client)[1]
    names, rest = client_state(client, client.param_groups[0], 4)
    assert names == ("exp_avg_sq",)
    assert rest["step"] == 4


def test_a_trial_leaves_no_trace() -> None:
    def counting(param: torch.nn.Parameter, state: dict[str, object], group: dict[str, object]) -> None:
        state["count"] = int(state.get("count", 0)) + 1  # type: ignore[call-overload]
        state["sum"] = state.get("sum", 0) + param.grad  # type: ignore[operator]
        plain(param, state, group)

    client = optimizer(counting)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    name, _ = adopt(client)
    assert torch.equal(torch.rand(1), expected)
    assert adopted(name) is client
    assert not client.state
    assert torch.equal(client.param_groups[0]["params"][0], torch.ones(3))
    assert client_state(client, client.param_groups[0], 7) == (("sum",), {"count": 7})
    assert adopted("AdamW") is None


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stage", [1, 3])
def test_own_optimizers_step_shards(ranks: RankPool, world: int, stage: int, tmp_path: Path) -> None:
    ranks.run(world, "client_cases", "own_optimizers_step_shards", stage, str(tmp_path))


def test_own_optimizers_are_asked_for(ranks: RankPool) -> None:
    ranks.run(2, "client_cases", "own_optimizers_are_asked_for")
