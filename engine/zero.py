"""Sharded parameters for scripts: `dslaunch.engine.zero`, DeepSpeed's `deepspeed.zero`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, home_of
from dslaunch.engine.errors import EngineError
from dslaunch.engine.sharded import ShardedBucket, ZeroParamStatus
from dslaunch.engine.units import LEAF_MARK, mark_leaves
from dslaunch.engine.watched import EXTERNALS
from dslaunch.engine.zero_init import Init

if TYPE_CHECKING:
    from dslaunch.engine.engine import Engine

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "get_z3_leaf_modules",
    "register_external_parameter",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "unregister_external_parameter",
    "unset_z3_leaf_modules",
    "unwrap_model_for_generation",
    "z3_leaf_module",
]

Params = torch.Tensor | Iterable[torch.Tensor | None]


class GatheredParameters:
    """Have whole parameters inside the `with` block, on every rank. Collective.

    With `modifier_rank`, what that rank has written into them is sent to all ranks when the block ends, and
    reaches the shards and the fp32 masters; without it edits are lost. Parameters that are not sharded are
    left as they are, but edits by `modifier_rank` reach their masters too. Blocks may be nested; the
    modifier of an inner block wins only for its own parameters.
    """

    def __init__(
        self,
        params: Params,
        modifier_rank: int | None = None,
        fwd_module: torch.nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        listed = [params] if isinstance(params, torch.Tensor) else list(params)
        # Scripts list a layer's weight and bias, and there may be no bias.
        present = [param for param in listed if isinstance(param, torch.Tensor)]
        self._params = list(dict.fromkeys(present)) if enabled else []
        self._modifier = modifier_rank
        if fwd_module is not None:
            for param in self._params:
                register_external_parameter(fwd_module, param)

    def __enter__(self) -> None:
        for bucket in self._sharded():
            bucket.start_gather()
        for bucket in self._sharded():
            bucket.gather()
            bucket.num_holders += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._modifier is not None and kind is None:
            self._keep_edits(self._modifier)
        for bucket in self._sharded():
            bucket.num_holders -= 1
            bucket.let_go()

    @torch.no_grad()
    def _keep_edits(self, source: int) -> None:
        homes = [home for param in self._params if (home := home_of(param)) is not None]
        for param in self._params:
            home = home_of(param)
            if home is not None and param.shape != home.shape:
                raise EngineError(
                    f"{home.name} was given shape {tuple(param.shape)} inside GatheredParameters",
                    "edit gathered parameters in place; shapes are fixed",
                )
            collectives.broadcast(param.data, source)
        for home in homes:
            home.bucket.keep_member(home.index)

    def _sharded(self) -> list[ShardedBucket]:
        """Every sharded bucket behind the parameters, once, in an order all ranks share."""
        found: dict[int, Bucket] = {}
        for param in self._params:
            home = home_of(param)
            if home is not None:
                found.setdefault(id(home.bucket), home.bucket)
        return [bucket for bucket in found.values() if isinstance(bucket, ShardedBucket)]


@contextmanager
def unwrap_model_for_generation(model: Engine) -> Iterator[Engine]:
    """Have all parameters of a stage-3 engine whole inside the `with` block, and no hooks. Collective."""
    with GatheredParameters(model.parameters()):
        offload = model.parameter_offload
        for handle in () if offload is None else offload.forward_hooks:
            handle.remove()
        try:
            yield model
        finally:
            if offload is not None:
                offload.forward_hooks = []
                offload._register_deepspeed_module(offload.module)


def register_external_parameter(module: torch.nn.Module, parameter: torch.Tensor) -> None:
    """Say that `module`'s forward reads `parameter`, which another module owns."""
    external = module.__dict__.setdefault(EXTERNALS, [])
    if not any(known is parameter for known in external):
        external.append(parameter)


def unregister_external_parameter(module: torch.nn.Module, parameter: torch.Tensor) -> None:
    """Take `register_external_parameter` back."""
    external = module.__dict__.get(EXTERNALS, [])
    if not any(known is parameter for known in external):
        raise EngineError(
            f"the parameter is not registered with {type(module).__name__}", "register it before"
        )
    module.__dict__[EXTERNALS] = [known for known in external if known is not parameter]


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Sequence[type[torch.nn.Module] | str]
) -> list[torch.nn.Module]:
    """Make stage 3 gather every module of these classes (or class names) as a whole; returns them.

    Call it before `initialize`.
    """
    return mark_leaves(model, leaf_module_classes, True)


def unset_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Sequence[type[torch.nn.Module] | str]
) -> list[torch.nn.Module]:
    """Take `set_z3_leaf_modules` back; returns the modules."""
    return mark_leaves(model, leaf_module_classes, False)


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules marked as leaves."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def z3_leaf_module(model: torch.nn.Module) -> bool:
    """Whether this module is marked as a leaf."""
    return bool(getattr(model, LEAF_MARK, False))


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Mark this one module as a leaf, or not."""
    setattr(model, LEAF_MARK, flag)
