"""The fused optimizers beside torch's: same parameters, same state dicts, in both directions."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from dslaunch.engine.ops import FusedAdagrad, FusedAdamW, FusedLamb, FusedLion, FusedSGD
from dslaunch.engine.ops.remainder import settle_ties_

Make = Callable[..., torch.optim.Optimizer]
PAIRS: dict[str, tuple[Make, Make, dict[str, object]]] = {
    "adamw": (FusedAdamW, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adam": (
        lambda params, **options: FusedAdamW(params, adam_w_mode=False, **options),
        torch.optim.Adam,
        {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.9), "maximize": True},
    ),
    "adagrad": (
        FusedAdagrad,
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
    ),
    "sgd": (FusedSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    "momentum": (FusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "nesterov": (FusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}
ALL: dict[str, Make] = {
    "adamw": FusedAdamW,
    "lion": FusedLion,
    "adagrad": FusedAdagrad,
    "sgd": lambda params, **options: FusedSGD(params, momentum=0.9, **options),
    "lamb": FusedLamb,
}
SHAPES = ((3, 5), (), (0,), (1000, 33), (7,), (2, 3, 4, 5))


@pytest.fixture(params=["cpu", "cuda"])
def place(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(request.param)


def parameters(place: torch.device, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.randn(shape, device=place).to(dtype)) for shape in SHAPES]
    params[-1].data = params[-1].data.to(memory_format=torch.channels_last)
    return params


def twins(place: torch.device) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    ours = parameters(place)
    return ours, [torch.nn.Parameter(p.detach().clone()) for p in ours]


def give_gradients(*lists: list[torch.nn.Parameter], idle: int | None = None) -> None:
    for number, group in enumerate(zip(*lists, strict=True)):
        grad = None if number == idle else torch.randn_like(group[0], dtype=torch.float32)
        for p in group:
            p.grad = None if grad is None else grad.to(p.dtype, copy=True)


def assert_alike(ours: list[torch.nn.Parameter], theirs: list[torch.nn.Parameter]) -> None:
    """To 1e-5; few elements, those whose second moment is nearly 0, to 1e-4."""
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
        far = (mine - other).abs() > 1e-5 * (1 + other.abs())
        assert far.sum() <= max(1, far.numel() // 1000)


@pytest.mark.parametrize("name", PAIRS)
def test_steps_as_torch_does(name: str, place: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    fused, torchs, options = PAIRS[name]
    ours, theirs = twins(place)
    optimizers = fused(ours, **options), torchs(theirs, **options)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers]
    for step in range(10):
        give_gradients(ours, theirs, idle=step % 3)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
    assert_alike(ours, theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_state_dicts_go_both_ways(name: str, place: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    fused, torchs, options = PAIRS[name]
    ours, theirs = twins(place)
    first, second = fused(ours, **options), torchs(theirs, **options)
    for _ in range(3):
        give_gradients(ours, theirs)
        first.step()
        second.step()
    mine, other = first.state_dict(), second.state_dict()
    for index, state in other["state"].items():
        # torch keeps an empty entry for SGD without momentum
        assert {key for key, value in state.items() if value is not None} <= set(mine["state"][index])
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(mine["state"][index][key], value, rtol=1e-5, atol=1e-5)
    swapped = fused(ours, **options), torchs(theirs, **options)
    swapped[0].load_state_dict(copy.deepcopy(other))
    swapped[1].load_state_dict(copy.deepcopy(mine))
    for step in range(3):
        give_gradients(ours, theirs, idle=step)
        for optimizer in swapped:
            optimizer.step()
    assert_alike(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALL)
def test_low_precision_parameters_have_masters(
    name: str, dtype: torch.dtype, place: torch.device, seed: int
) -> None:
    """Steps far below bf16's precision add up, and survive a checkpoint."""
    torch.manual_seed(seed)
    low = parameters(place, dtype)
    full = [torch.nn.Parameter(p.detach().float()) for p in low]
    optimizer, oracle = ALL[name](low, lr=1e-4), ALL[name](full, lr=1e-4)
    for step in range(6):
        give_gradients(low, full)
        for p, q in zip(low, full, strict=True):
            assert p.grad is not None
            q.grad = p.grad.float()
        optimizer.step()
        oracle.step()
        if dtype == torch.bfloat16:
            for q in full:
                settle_ties_(q.data)
        if step == 2:
            buffer = io.BytesIO()
            torch.save(optimizer.state_dict(), buffer)
            buffer.seek(0)
            optimizer = ALL[name](low, lr=1e-4)
            optimizer.load_state_dict(torch.load(buffer, weights_only=True))
    for p, q in zip(low, full, strict=True):
        assert torch.equal(optimizer.state[p]["master"], q)
        assert torch.equal(p, q.to(dtype))


def test_moments_of_bf16_parameters_load_from_torch_as_fp32(place: torch.device) -> None:
    low = parameters(place, torch.bfloat16)
    other = torch.optim.AdamW(low)
    give_gradients(low)
    other.step()
    optimizer = FusedAdamW(low)
    optimizer.load_state_dict(other.state_dict())
    for p in low:
        assert optimizer.state[p]["exp_avg"].dtype == torch.float32
        assert torch.equal(optimizer.state[p]["master"], p.float())


@pytest.mark.parametrize("name", ALL)
def test_loss_scaling_leaves_out_steps_with_infinities(name: str, place: torch.device) -> None:
    params, plain = twins(place)
    optimizer, oracle = ALL[name](params, lr=0.01), ALL[name](plain, lr=0.01)
    scaler = torch.amp.GradScaler(place.type, init_scale=1024.0)
    for step in range(4):
        give_gradients(params, plain)
        scaler.scale(torch.zeros((), device=place))  # makes the scale
        for p in params:
            assert p.grad is not None
            p.grad *= scaler.get_scale()
        if step == 2:
            assert params[0].grad is not None
            params[0].grad[0, 0] = float("inf")
        else:
            oracle.step()
        scaler.step(optimizer)
        scaler.update()
    assert_alike(params, plain)


def test_closures_and_zero_grad() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = FusedSGD([p], lr=1.0)

    def closure() -> float:
        optimizer.zero_grad()
        loss = p.sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 3
    assert torch.equal(p.detach(), torch.zeros(3))
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is not None
    assert not p.grad.any()


def test_gradients_laid_out_otherwise_are_right_too() -> None:
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(6, 4))
    q = torch.nn.Parameter(p.detach().clone())
    p.grad = torch.randn(4, 6).t()
    q.grad = p.grad.contiguous()
    FusedAdamW([p]).step()
    FusedAdamW([q]).step()
    torch.testing.assert_close(p, q)


def test_states_put_in_place_by_others_are_used() -> None:
    """Also where a step before has looked them up already."""
    params, twins_ = twins(torch.device("cpu"))
    params, twins_ = params[:3], twins_[:3]
    optimizer, other = FusedAdamW(params), torch.optim.AdamW(twins_)
    for step in range(6):
        give_gradients(params, twins_)
        optimizer.step()
        other.step()
        if step == 2:
            for p, q in zip(params, twins_, strict=True):
                optimizer.state[p]["exp_avg"] = torch.ones_like(p)
                other.state[q]["exp_avg"].fill_(1.0)
        if step == 3:
            for p, q in zip(params, twins_, strict=True):
                optimizer.state[p] = {**optimizer.state[p], "exp_avg_sq": torch.ones_like(p)}
                other.state[q]["exp_avg_sq"].fill_(1.0)
                p.data = p.data.clone()
    assert_alike(params, twins_)


def test_sparse_gradients_are_refused() -> None:
    p = torch.nn.Parameter(torch.zeros(4, 2))
    p.grad = torch.ones(4, 2).to_sparse()
    with pytest.raises(TypeError, match="FusedSGD expects dense gradients but got a sparse one"):
        FusedSGD([p]).step()


def test_groups_have_their_own_settings_and_may_be_added() -> None:
    params = [torch.nn.Parameter(torch.zeros(4)) for _ in range(3)]
    optimizer = FusedSGD([{"params": params[:1], "lr": 1.0}, {"params": params[1:2]}], lr=0.5)
    optimizer.add_param_group({"params": params[2:], "lr": 0.25})
    for p in params:
        p.grad = torch.ones(4)
    optimizer.step()
    assert [p[0].item() for p in params] == [-1.0, -0.5, -0.25]


def test_deepcopies_step_alike() -> None:
    p = torch.nn.Parameter(torch.randn(50))
    optimizer = FusedAdamW([p])
    p.grad = torch.randn(50)
    optimizer.step()
    p2, optimizer2 = copy.deepcopy((p, optimizer))
    p2.grad = p.grad.clone()
    optimizer.step()
    optimizer2.step()
    assert torch.equal(p, p2)
    assert float(optimizer.state[p]["step"]) == float(optimizer2.state[p2]["step"]) == 2


def test_lion_and_lamb_by_hand() -> None:
    p = torch.nn.Parameter(torch.tensor([3.0, -4.0, 0.0]))
    p.grad = torch.tensor([2.0, -1.0, 0.0])
    FusedLion([p], lr=0.5, weight_decay=0.1).step()
    torch.testing.assert_close(p.detach(), torch.tensor([3 * 0.95 - 0.5, -4 * 0.95 + 0.5, 0.0]))
    p = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
    p.grad = torch.tensor([2.0, -1.0])
    FusedLamb([p], lr=0.1, eps=0.0).step()
    # Adam's first direction is the sign, of norm sqrt 2; the tensor's norm is 5.
    torch.testing.assert_close(p.detach(), torch.tensor([3 - 0.5 / 2**0.5, -4 + 0.5 / 2**0.5]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: FusedAdamW(p, lr=-1.0), "expects lr >= 0 but got -1.0"),
        (lambda p: FusedLion(p, betas=(0.9, 1.0)), r"expects betas in \[0, 1\) but got \(0.9, 1.0\)"),
        (lambda p: FusedSGD(p, nesterov=True), "nesterov expects a momentum and no dampening"),
    ],
)
def test_bad_settings_are_refused(make: Make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([torch.nn.Parameter(torch.zeros(1))])


def test_amsgrad_is_refused_also_from_a_state_dict() -> None:
    p = torch.nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    other = torch.optim.AdamW([p], amsgrad=True)
    other.step()
    optimizer = FusedAdamW([p])
    optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="expects amsgrad=False but got True"):
        optimizer.step()


def test_a_whole_life_imports_no_compiler() -> None:
    """torch._dynamo takes more than a second, and torch's optimizers import it at their first step."""
    code = """if True:
        import sys, torch
        from dslaunch.engine.ops import FusedAdamW
        p = torch.nn.Parameter(torch.zeros(3))
        optimizer = FusedAdamW([p])
        p.grad = torch.ones(3)
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
        print("torch._dynamo" in sys.modules)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
