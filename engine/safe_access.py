"""Reading and writing what a parameter is trained with: its fp32 master, gradient and optimizer state.

Legend: `S` elements of a rank's shard of a bucket.
DeepSpeed's `safe_get_full_*` and friends. The full variants are collective, and return (or take) tensors of
the parameter's own shape in fp32; the local ones see this rank's part, 1-D, possibly empty. All return None
for parameters that are not trained. Gradients are there between the backward of the last micro step and
`step()`, averaged over ranks and unscaled.
"""

from __future__ import annotations

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Home, home_of
from dslaunch.engine.errors import EngineError
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.reducer import Reducer


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The fp32 master. Collective."""
    home = _trained(param)
    return None if home is None else _collect(home, _master(home))


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set the master, and the parameter to it, rounded. Collective; every rank passes the same `value`."""
    home = _must_be_trained(param)
    part = _scatter(home, _master(home), value)
    _publish(home, part)


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A state by its name, `exp_avg`. Collective."""
    home = _trained(param)
    return None if home is None else _collect(home, _state(home, optim_state_key))


def safe_set_full_optimizer_state(
    param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Set a state; every rank passes the same `value`."""
    home = _must_be_trained(param)
    _scatter(home, _state(home, optim_state_key), value)


def safe_get_full_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The mean gradient over ranks. Collective; finishes the averaging that is still under way.

    Before the last micro step it is the mean of what has been accumulated, which goes on.
    """
    home = _trained(param)
    if home is None:
        return None
    optimizer = _optimizer(home)
    reducer = optimizer.reducer
    if isinstance(reducer, Reducer) and param.grad is not None and not (reducer.armed or reducer.has_sent):
        mean = param.grad.detach().float().clone()
        collectives.all_reduce_sum(mean)
        return mean / (collectives.num_ranks() * optimizer.loss_scale)
    reducer.finish()
    return _collect(home, _grad(home)) / optimizer.loss_scale


def safe_set_full_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set the mean gradient; every rank passes the same `value`. Collective."""
    home = _must_be_trained(param)
    optimizer = _optimizer(home)
    optimizer.reducer.finish()
    _scatter(home, _edited_grad(home), value * optimizer.loss_scale)


def safe_get_local_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's part of the fp32 master, 1-D."""
    home = _trained(param)
    return None if home is None else _local(home, _master(home)).clone()


def safe_set_local_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set this rank's part of the master, and the parameter's; collective below stage 3."""
    home = _must_be_trained(param)
    _local(home, _master(home)).copy_(value.reshape(-1))
    _publish(home, home.bucket.parts(home.index)[0])


def safe_get_local_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's part of the mean gradient, 1-D, fp32. Collective where averaging is still under way."""
    home = _trained(param)
    if home is None:
        return None
    optimizer = _optimizer(home)
    optimizer.reducer.finish()
    return _local(home, _grad(home)).float() / optimizer.loss_scale


def safe_set_local_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set this rank's part of the mean gradient."""
    home = _must_be_trained(param)
    optimizer = _optimizer(home)
    optimizer.reducer.finish()
    _local(home, _edited_grad(home)).copy_(value.reshape(-1) * optimizer.loss_scale)


def safe_get_local_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """This rank's part of a state, 1-D."""
    home = _trained(param)
    return None if home is None else _local(home, _state(home, optim_state_key)).clone()


def safe_set_local_optimizer_state(
    param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Set this rank's part of a state."""
    home = _must_be_trained(param)
    _local(home, _state(home, optim_state_key)).copy_(value.reshape(-1))


def _trained(param: torch.nn.Parameter) -> Home | None:
    home = home_of(param)
    return home if home is not None and home.bucket.state is not None else None


def _must_be_trained(param: torch.nn.Parameter) -> Home:
    home = _trained(param)
    if home is None:
        raise EngineError("the parameter is not trained by an engine", "pass a parameter of engine.module")
    return home


def _optimizer(home: Home) -> ShardedOptimizer:
    optimizer = home.bucket.owner
    assert isinstance(optimizer, ShardedOptimizer)
    return optimizer


def _master(home: Home) -> torch.Tensor:
    assert home.bucket.state is not None
    return home.bucket.state.master


def _state(home: Home, key: str) -> torch.Tensor:
    assert home.bucket.state is not None
    states = home.bucket.state.states
    if key not in states:
        raise EngineError(f"there is no optimizer state {key!r}", f"ask for {' or '.join(states) or 'none'}")
    return states[key]


def _grad(home: Home) -> torch.Tensor:
    return home.bucket.mean_grad


def _edited_grad(home: Home) -> torch.Tensor:
    """The gradient, about to be written."""
    optimizer = _optimizer(home)
    if optimizer.offload is not None and optimizer.offload.stepper.has_begun:
        raise EngineError(
            "gradients cannot be set: the host has begun to step with them",
            "set gradient_clipping, which makes the host wait for step()",
        )
    if home.bucket.host is not None:
        home.bucket.host.edited = True
    return home.bucket.mean_grad


def _local(home: Home, flat: torch.Tensor) -> torch.Tensor:
    """This rank's part of the parameter in `flat` [S], a view."""
    return flat[home.bucket.parts(home.index)[0]]


@torch.no_grad()
def _collect(home: Home, flat: torch.Tensor) -> torch.Tensor:
    """The whole parameter's elements out of every rank's `flat` [S], in the parameter's shape."""
    part, of_member = home.bucket.parts(home.index)
    whole = torch.zeros(home.shape.numel(), dtype=torch.float32, device=home.bucket.params.device)
    whole[of_member] = flat[part].to(whole)
    if _is_sharded(home):
        collectives.all_reduce_sum(whole)
    return whole.view(home.shape)


@torch.no_grad()
def _scatter(home: Home, flat: torch.Tensor, value: torch.Tensor) -> slice:
    """Write this rank's part of `value` into `flat` [S]; returns where."""
    if value.shape != home.shape:
        raise EngineError(
            f"{home.name} has shape {tuple(home.shape)}, the value {tuple(value.shape)}",
            "pass a whole tensor",
        )
    part, of_member = home.bucket.parts(home.index)
    flat[part] = value.reshape(-1)[of_member].to(flat)
    return part


@torch.no_grad()
def _publish(home: Home, part: slice) -> None:
    """Round the master into the parameter's shard; whole parameters are gathered anew."""
    bucket = home.bucket
    bucket.param_shard[part] = _master(home)[part].to(bucket.param_shard)
    _optimizer(home).republish(bucket)


def _is_sharded(home: Home) -> bool:
    return home.bucket.param_shard.numel() != home.bucket.spec.numel
