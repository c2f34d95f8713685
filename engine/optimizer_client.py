"""A script's own optimizer on flat shards: taken where a trial shows that it steps elements one by one.

The trial steps six numbers as one tensor, as a matrix and in two pieces. Where all end alike, and the state
of an element is its own but for a count of steps, then shards of any size end as whole tensors would.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dslaunch.engine.errors import EngineError

_NUM_TRIALS = 3
_SHAPES: Sequence[Sequence[tuple[int, ...]]] = (((6,),), ((3, 2),), ((2,), (4,)))

_adopted: dict[str, torch.optim.Optimizer] = {}
_known: dict[tuple[int, str], Kept] = {}


@dataclass(frozen=True, slots=True)
class Trial:
    """What steps have left: the elements, and the names of what each has, of counts and of constants."""

    values: torch.Tensor  # [6]
    states: tuple[str, ...]
    counts: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A parameter's state after one step: the names of what elements have, and the rest."""

    states: tuple[str, ...]
    counts: Mapping[str, Any]
    constants: Mapping[str, object]


def adopt(client: torch.optim.Optimizer) -> str:
    """The name under which shards are stepped as `client` would; EngineError where they cannot be."""
    kind = type(client)
    name = f"{kind.__module__}.{kind.__qualname__}"
    for group in client.param_groups:
        check_elementwise(client, group)
    if name in _adopted and _settings(_adopted[name]) != _settings(client):
        raise EngineError(
            f"two optimizers of the class {kind.__name__} differ in more than their parameter groups",
            "put what differs into the groups, or train one model in a process",
        )
    _adopted[name] = client
    return name


def adopted(name: str) -> torch.optim.Optimizer | None:
    """The optimizer of that name; None where it is one of torch's."""
    return _adopted.get(name)


def check_elementwise(client: torch.optim.Optimizer, group: Mapping[str, Any]) -> None:
    """EngineError unless the trial shows that steps are elementwise."""
    try:
        whole, *others = (_try(client, group, shapes) for shapes in _SHAPES)
    except EngineError:
        raise
    except Exception as error:
        raise _refusal(client, f"a trial step failed: {error}") from error
    for other in others:
        if (other.states, other.counts, other.constants) != (whole.states, whole.counts, whole.constants):
            raise _refusal(client, "what it keeps depends on the shapes of tensors")
        if not torch.allclose(whole.values, other.values, rtol=1e-5, atol=1e-7):
            raise _refusal(client, "its step looks beyond single elements, which are on several ranks")


def client_state(
    client: torch.optim.Optimizer, group: Mapping[str, Any], step: int
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of what each element has, and the rest of the state after `step` steps."""
    kept = _kept(client, {name: value for name, value in group.items() if name not in ("params", "lr")})
    rest = dict(kept.constants)
    for name, first in kept.counts.items():
        rest[name] = torch.full_like(first, step) if isinstance(first, torch.Tensor) else type(first)(step)
    return kept.states, rest


def instance(
    client: torch.optim.Optimizer, group: Mapping[str, Any], params: Sequence[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """An optimizer like `client` with this one group, and without state."""
    made = object.__new__(type(client))
    # A scheduler wraps `step` of the object that it is given, which is the script's.
    made.__dict__.update({name: value for name, value in client.__dict__.items() if name != "step"})
    made.state = defaultdict(dict)
    made.param_groups = [{**group, "params": list(params)}]
    return made


def _kept(client: torch.optim.Optimizer, group: Mapping[str, Any]) -> Kept:
    """What one step with these hyperparameters keeps; tried once."""
    key = (id(client), repr(sorted(group.items())))
    if key not in _known:
        trial = _try(client, {**group, "lr": 1e-3}, _SHAPES[0])
        made = instance(client, {**group, "lr": 1e-3}, [param := torch.nn.Parameter(torch.zeros(1))])
        param.grad = torch.ones(1)
        with torch.enable_grad():
            made.step()
        state = made.state[param]
        constants = {name: state[name] for name in trial.constants}
        _known[key] = Kept(trial.states, {name: state[name] for name in trial.counts}, constants)
    return _known[key]


def _try(client: torch.optim.Optimizer, group: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Trial:
    generator = torch.Generator().manual_seed(1)
    start, *grads = (torch.randn(6, generator=generator) for _ in range(_NUM_TRIALS + 1))
    params = [torch.nn.Parameter(piece.clone()) for piece in _cut(start, shapes)]
    made = instance(client, group, params)
    kinds: dict[str, str] = {}
    constants: dict[str, object] = {}
    for number, grad in enumerate(grads, start=1):
        for param, piece in zip(params, _cut(grad, shapes), strict=True):
            param.grad = piece.clone()
        before = dict(made.param_groups[0])
        with torch.enable_grad():
            made.step()
        if made.param_groups[0] != before:
            raise _refusal(client, "it keeps state in its parameter groups")
        for param in params:
            found = {name: _kind(value, param, number) for name, value in made.state[param].items()}
            kinds = kinds or found
            if found != kinds:
                raise _refusal(client, "what it keeps changes from step to step")
            for name in (name for name, kind in found.items() if kind == "constant"):
                value = made.state[param][name]
                if isinstance(value, torch.Tensor | float) or constants.setdefault(name, value) != value:
                    raise _refusal(client, f"its state {name} is not one of single elements")
    return Trial(
        torch.cat([param.detach().reshape(-1) for param in params]),
        *(tuple(name for name in kinds if kinds[name] == kind) for kind in ("element", "count", "constant")),
    )


def _kind(value: object, param: torch.nn.Parameter, step: int) -> str:
    if isinstance(value, torch.Tensor) and value.shape == param.shape and value.numel() > 1:
        return "element"
    if isinstance(value, torch.Tensor):
        return "count" if value.numel() == 1 and value.item() == step else "constant"
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and value == step
    return "count" if is_count else "constant"


def _cut(flat: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    numels = [torch.Size(shape).numel() for shape in shapes]
    return [piece.reshape(shape) for piece, shape in zip(torch.split(flat, numels), shapes, strict=True)]


def _settings(client: torch.optim.Optimizer) -> dict[str, str]:
    own = {"state", "param_groups", "defaults", "step"}
    return {
        name: repr(value)
        for name, value in client.__dict__.items()
        if name not in own and not name.startswith("_")
    }


def _refusal(client: torch.optim.Optimizer, why: str) -> EngineError:
    return EngineError(
        f"the optimizer {type(client).__name__} cannot step shards: {why}",
        "pass torch.optim.AdamW or another optimizer that treats elements alike, or name one in the config",
    )
