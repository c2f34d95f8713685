"""Under torch.compile: the same steps, in one graph; and the operators as torch.library wants them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import pytest
import torch
from rule_cases import MAKES

from dslaunch.engine.ops import FusedAdamW, FusedSGD, compiled, norm
from dslaunch.engine.ops.adamw import AdamWStep

# What torch's compiler says about torch itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

BACKEND = "inductor" if os.environ.get("DSLAUNCH_TEST_ALL") else "aot_eager"


@pytest.fixture(params=["cpu", "cuda"])
def place(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(request.param)


def twins(place: torch.device) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Of two dtypes, one without elements."""
    made = [torch.randn(n, device=place).to(dtype) for n, dtype in ((40, torch.float32), (7, torch.bfloat16))]
    made.append(torch.zeros(0, device=place))
    return [torch.nn.Parameter(p) for p in made], [torch.nn.Parameter(p.clone()) for p in made]


def give_gradients(ours: list[torch.nn.Parameter], theirs: list[torch.nn.Parameter]) -> None:
    for p, q in zip(ours, theirs, strict=True):
        grad = torch.randn_like(p)
        if p.grad is None:
            p.grad, q.grad = grad, grad.clone()
        else:
            assert q.grad is not None
            p.grad.copy_(grad)
            q.grad.copy_(grad)


@pytest.mark.parametrize("name", MAKES)
def test_a_compiled_step_is_the_step(name: str, place: torch.device) -> None:
    torch._dynamo.reset()
    torch.manual_seed(7)
    ours, theirs = twins(place)
    lr = torch.tensor(0.01)
    optimizer, plain = MAKES[name](ours, lr=lr), MAKES[name](theirs, lr=0.01)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    step = torch.compile(optimizer.step, fullgraph=True, backend=backend)
    for number in range(1, 5):
        give_gradients(ours, theirs)
        lr.fill_(0.01 / number)
        plain.param_groups[0]["lr"] = 0.01 / number
        step()
        plain.step()
    assert all(map(torch.equal, ours, theirs))
    assert len(graphs) <= 2  # a first one, in which gradients and states were new
    assert "dslaunch.optimizer_step" in graphs[-1].code
    if name in ("adamw", "adagrad", "lamb"):
        assert float(optimizer.state[ours[0]]["step"]) == 4


def test_a_compiled_step_goes_on_where_an_uncompiled_one_or_a_checkpoint_ended(place: torch.device) -> None:
    torch._dynamo.reset()
    ours, theirs = twins(place)
    optimizer, plain = FusedAdamW(ours), FusedAdamW(theirs)
    step = torch.compile(optimizer.step, fullgraph=True, backend="eager")
    for compiled_ in (False, True, True, False, True):
        give_gradients(ours, theirs)
        (step if compiled_ else optimizer.step)()
        plain.step()
    saved = copy.deepcopy(plain.state_dict())
    optimizer.load_state_dict(saved)
    plain.load_state_dict(saved)
    for _ in range(2):
        give_gradients(ours, theirs)
        step()
        plain.step()
    assert all(map(torch.equal, ours, theirs))
    assert float(optimizer.state[ours[0]]["step"]) == 7


def test_a_step_and_a_norm_beside_other_operations() -> None:
    """Through functionalization; with DSLAUNCH_TEST_ALL also through the C++ compiler, which takes 10 s."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    models = [torch.nn.Linear(8, 4, bias=False) for _ in "ab"]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [FusedAdamW(model.parameters(), lr=0.01) for model in models]
    inputs = torch.randn(3, 8)

    def step_and_norm(grads: list[torch.Tensor]) -> torch.Tensor:
        total = norm.sum_of_squares(grads).sqrt()
        optimizers[0].step()
        return total

    compiled_step = torch.compile(step_and_norm, backend=BACKEND)
    for _ in range(3):
        for model in models:
            model.zero_grad()
            model(inputs).square().sum().backward()
        total = compiled_step([models[0].weight.grad])
        optimizers[1].step()
        assert models[1].weight.grad is not None
        torch.testing.assert_close(total, models[1].weight.grad.double().norm())
    assert torch.equal(models[0].weight, models[1].weight)


def test_momentum_that_starts_otherwise_is_refused() -> None:
    torch._dynamo.reset()
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = FusedSGD([p], momentum=0.9, dampening=0.5)
    step = torch.compile(optimizer.step, backend="eager")
    with pytest.raises(RuntimeError, match=r"call step\(\) once outside of torch.compile"):
        step()
    optimizer.step()
    step()


def test_operators_are_as_torch_library_wants_them(place: torch.device) -> None:
    theta, grad = (torch.randn(50, device=place) for _ in "tg")
    states = [torch.zeros(50, device=place) for _ in "mv"]
    numbers = compiled.numbers_of(AdamWStep(1, 0.01, 0.9, 0.999, 1e-8, 0.1))
    low = torch.zeros(50, device=place, dtype=torch.bfloat16)
    for params in ([], [low]):
        counters, has = [torch.zeros((), device=place)], [len(params)]
        tensors = ([theta], states, [grad], params, counters)
        arguments = ("adamw", numbers, 0.01, None, *tensors, has, [0], [0], None, None)
        torch.library.opcheck(torch.ops.dslaunch.optimizer_step.default, arguments)
    torch.library.opcheck(torch.ops.dslaunch.sum_of_squares.default, ([grad, theta],))
