"""A script's own optimizer on flat shards, as a trial shows that it can be stepped.

The trial steps six numbers as one tensor, as a matrix and in two pieces. Where all end alike, it steps
elements one by one, and shards of any size end as whole tensors would. Others (Adafactor) see a shard as one
vector, as they do in DeepSpeed. What is kept between steps has to be of elements, or a count of steps.
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
    kinds: Mapping[str, str]  # of the state by name: "element", "count", "constant" or "rest"

    def names(self, kind: str) -> tuple[str, ...]:
        """What of the state is of that kind."""
        return tuple(name for name, found in self.kinds.items() if found == kind)


@dataclass(frozen=True, slots=True)
class Kept:
    """A parameter's state after one step: the names of what elements have, and the rest."""

    states: tuple[str, ...]
    counts: Mapping[str, Any]
    constants: Mapping[str, object]


def adopt(client: torch.optim.Optimizer) -> tuple[str, bool]:
    """The name under which shards are stepped as `client` would, and whether that is elementwise.

    EngineError where they cannot be.
    """
    kind = type(client)
    name = f"{kind.__module__}.{kind.__qualname__}"
    with torch.random.fork_rng(devices=[]):
        exact = {_try_group(client, group) for group in client.param_groups} == {True}
    if name in _adopted and _settings(_adopted[name]) != _settings(client):
        raise EngineError(
            f"two optimizers of the class {kind.__name__} differ in more than their parameter groups",
            "put what differs into the groups, or train one model in a process",
        )
    _adopted[name] = client
    return name, exact


def adopted(name: str) -> torch.optim.Optimizer | None:
    """The optimizer of that name; None where it is one of torch's."""
    return _adopted.get(name)


def _try_group(client: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether steps are elementwise; EngineError where they cannot go on from what shards keep."""
    try:
        whole = _try(client, group, _SHAPES[0])
        forgetful, *others = (_try(client, group, shapes, whole.names("rest")) for shapes in _SHAPES)
    except EngineError:
        raise
    except Exception as error:
        raise _refusal(client, f"a trial step failed: {error}") from error
    if not _alike(whole, forgetful):
        rest = ", ".join(whole.names("rest")) or "random numbers"
        raise _refusal(client, f"it keeps {rest} from step to step, which is not of single elements")
    return all(whole.kinds == other.kinds and _alike(whole, other) for other in others)


def _alike(one: Trial, other: Trial) -> bool:
    return torch.allclose(one.values, other.values, rtol=1e-5, atol=1e-7)


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
        counts, constants = (
            {name: state[name] for name in trial.names(kind)} for kind in ("count", "constant")
        )
        _known[key] = Kept(trial.names("element"), counts, constants)
    return _known[key]


def _try(
    client: torch.optim.Optimizer,
    group: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    forgets: Sequence[str] = (),
) -> Trial:
    """A few steps; what of the state `forgets` names does not go on from one to the next."""
    generator = torch.Generator().manual_seed(1)
    start, *grads = (torch.randn(6, generator=generator) for _ in range(_NUM_TRIALS + 1))
    params = [torch.nn.Parameter(piece.clone()) for piece in _cut(start, shapes)]
    made = instance(client, group, params)
    kinds: dict[str, str] = {}
    last: dict[str, object] = {}
    for number, grad in enumerate(grads, start=1):
        for param, piece in zip(params, _cut(grad, shapes), strict=True):
            param.grad = piece.clone()
        before = dict(made.param_groups[0])
        with torch.enable_grad():
            made.step()
        if made.param_groups[0] != before:
            raise _refusal(client, "it keeps state in its parameter groups")
        for param in params:
            for name, value in made.state[param].items():
                kind = _kind(value, param, number)
                if kind == "constant" and last.setdefault(name, value) != value:
                    kind = "rest"
                if kinds.setdefault(name, kind) != kind:
                    kinds[name] = "rest"
        for param in params:
            kept = made.state[param]
            made.state[param] = {name: value for name, value in kept.items() if name not in forgets}
    return Trial(torch.cat([param.detach().reshape(-1) for param in params]), kinds)


def _kind(value: object, param: torch.nn.Parameter, step: int) -> str:
    if isinstance(value, torch.Tensor) and value.shape == param.shape and value.numel() > 1:
        return "element"
    if isinstance(value, torch.Tensor):
        return "count" if value.numel() == 1 and value.item() == step else "rest"
    if isinstance(value, int | float) and not isinstance(value, bool) and value == step:
        return "count"
    return "constant" if value is None or isinstance(value, bool | int | str) else "rest"


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
