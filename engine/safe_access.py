"""Reading and writing what a parameter is trained with: its fp32 master, gradient and optimizer state.

DeepSpeed's `safe_get_full_*` and friends. The full variants are collective, and return (or take) tensors of
the parameter's own shape in fp32; the local ones see this rank's part, 1-D, possibly empty. All return None
for parameters that are not trained. Gradients are there between the backward of the last micro step and
`step()`, averaged over ranks and unscaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Home, home_of
from dslaunch.engine.errors import EngineError
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.reducer import Reducer


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The fp32 master. Collective."""
    home = _trained(param)
    return None if home is None else _collect(home, _local(home, "master"))


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set the master, and the parameter to it, rounded. Collective; every rank passes the same `value`."""
    home = _must_be_trained(param)
    _set_master(home, _share_of(home, value))


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A state by its name, `exp_avg`. Collective."""
    home = _trained(param)
    return None if home is None else _collect(home, _local(home, _known(home, optim_state_key)))


def safe_set_full_optimizer_state(
    param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Set a state; every rank passes the same `value`."""
    home = _must_be_trained(param)
    _set_local(home, _known(home, optim_state_key), _share_of(home, value))


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
        total = param.grad.detach().float().clone()
        collectives.all_reduce_sum(total)
        return total / ((collectives.num_ranks() if reducer.averages else 1) * optimizer.loss_scale)
    reducer.finish()
    return _collect(home, _grad(home)) / optimizer.loss_scale


def safe_set_full_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set the mean gradient; every rank passes the same `value`. Collective."""
    home = _must_be_trained(param)
    optimizer = _optimizer(home)
    optimizer.reducer.finish()
    _edited_grad(home).copy_(_share_of(home, value) * optimizer.loss_scale)


def safe_update_full_grad_vectorized(
    param_list: Sequence[torch.nn.Parameter],
    update_func: Callable[[torch.Tensor | None, torch.nn.Parameter], torch.Tensor],
) -> None:
    """Set the mean gradient of each to what `update_func` makes of it, on every rank. Collective."""
    for param in param_list:
        safe_set_full_grad(param, update_func(safe_get_full_grad(param), param))


def safe_get_local_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's part of the fp32 master, 1-D."""
    home = _trained(param)
    return None if home is None else _local(home, "master").clone()


def safe_set_local_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set this rank's part of the master, and the parameter's; collective below stage 3."""
    home = _must_be_trained(param)
    _set_master(home, value.reshape(-1))


def safe_get_local_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's part of the mean gradient, 1-D, fp32. Collective where averaging is still under way."""
    home = _trained(param)
    if home is None:
        return None
    optimizer = _optimizer(home)
    optimizer.reducer.finish()
    return _grad(home).float() / optimizer.loss_scale


def safe_set_local_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Set this rank's part of the mean gradient."""
    home = _must_be_trained(param)
    optimizer = _optimizer(home)
    optimizer.reducer.finish()
    _edited_grad(home).copy_(value.reshape(-1) * optimizer.loss_scale)


def safe_get_local_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """This rank's part of a state, 1-D."""
    home = _trained(param)
    return None if home is None else _local(home, _known(home, optim_state_key)).clone()


def safe_set_local_optimizer_state(
    param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Set this rank's part of a state."""
    home = _must_be_trained(param)
    _set_local(home, _known(home, optim_state_key), value.reshape(-1))


def _trained(param: torch.nn.Parameter) -> Home | None:
    home = home_of(param)
    return home if home is not None and home.bucket.state is not None else None


def _must_be_trained(param: torch.nn.Parameter) -> Home:
    """Where the parameter lives, about to be written."""
    home = _trained(param)
    if home is None:
        raise EngineError("the parameter is not trained by an engine", "pass a parameter of engine.module")
    home.bucket.claim()
    return home


def _optimizer(home: Home) -> ShardedOptimizer:
    optimizer = home.bucket.owner
    assert isinstance(optimizer, ShardedOptimizer)
    return optimizer


def _local(home: Home, kind: str) -> torch.Tensor:
    """This rank's part of the master or a state, 1-D; it may be a view."""
    assert home.bucket.state is not None
    return home.bucket.state.read(kind, _part(home))


def _set_local(home: Home, kind: str, values: torch.Tensor) -> None:
    assert home.bucket.state is not None
    home.bucket.state.write(kind, values, _part(home))


def _set_master(home: Home, values: torch.Tensor) -> None:
    """Set this rank's part, and round it into the parameter's shard; whole parameters are gathered anew."""
    _set_local(home, "master", values)
    assert home.bucket.state is not None
    home.bucket.state.master.publish(_part(home))
    _optimizer(home).republish(home.bucket)


def _known(home: Home, key: str) -> str:
    assert home.bucket.state is not None
    states = home.bucket.state.states
    if key not in states:
        raise EngineError(f"there is no optimizer state {key!r}", f"ask for {' or '.join(states) or 'none'}")
    return key


def _grad(home: Home) -> torch.Tensor:
    """This rank's part of the mean gradient, a view."""
    return home.bucket.mean_grad[_part(home)]


def _edited_grad(home: Home) -> torch.Tensor:
    """The same, about to be written."""
    optimizer = _optimizer(home)
    if optimizer.offload is not None and optimizer.offload.stepper.has_begun:
        raise EngineError(
            "gradients cannot be set: the host has begun to step with them",
            "set gradient_clipping, which makes the host wait for step()",
        )
    if home.bucket.host is not None:
        home.bucket.host.edited = True
    return _grad(home)


def _part(home: Home) -> slice:
    """Where this rank's part of the parameter is in its shard of the bucket."""
    return home.bucket.parts(home.index)[0]


@torch.no_grad()
def _collect(home: Home, local: torch.Tensor) -> torch.Tensor:
    """The whole parameter's elements out of every rank's part, in the parameter's shape."""
    _, of_member = home.bucket.parts(home.index)
    whole = torch.zeros(home.shape.numel(), dtype=torch.float32, device=home.bucket.params.device)
    whole[of_member] = local.to(whole)
    if _is_sharded(home):
        collectives.all_reduce_sum(whole)
    return whole.view(home.shape)


def _share_of(home: Home, value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole `value`, 1-D."""
    if value.shape != home.shape:
        raise EngineError(
            f"{home.name} has shape {tuple(home.shape)}, the value {tuple(value.shape)}",
            "pass a whole tensor",
        )
    return value.detach().reshape(-1)[home.bucket.parts(home.index)[1]]


def _is_sharded(home: Home) -> bool:
    return home.bucket.param_shard.numel() != home.bucket.spec.numel
