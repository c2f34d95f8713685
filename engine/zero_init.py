"""`zero.Init`: a model whose parameters are sharded as soon as they exist, so that it is never whole.

Inside the context every module class's `__init__` is wrapped; when the outermost one of a module returns,
the parameters that are not sharded yet (its children have done theirs) are given rank 0's values and sharded,
each in a bucket of its own until `initialize` puts them into units. Those on the meta device have to wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from dslaunch.engine.buckets import Sharding, home_of
from dslaunch.engine.config import load_config
from dslaunch.engine.config_source import ConfigInput
from dslaunch.engine.distributed import current_world, init_distributed, use_device
from dslaunch.engine.errors import EngineError
from dslaunch.engine.lanes import lane_of
from dslaunch.engine.layout import ParamSpec, plan_layout
from dslaunch.engine.placement import DTYPES, FROZEN, host_home_of
from dslaunch.engine.sharded import HostHome, build_sharded


class Init:
    """Shard the parameters of every module built inside the `with` block; or of `module`, at once.

    `dtype` (or the config's bf16 and fp16 sections) is what parameters are made in; without both modules
    decide, and `initialize` casts. `enabled` false makes the context empty. Shards live on the host with
    `remote_device="cpu"` or the config's offload_param, pinned as `pin_memory` or that says. The remaining
    arguments are DeepSpeed's: `mpu` is refused, the others have no effect.
    """

    _active: Init | None = None

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        data_parallel_group: object = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: ConfigInput | None = None,
        config: ConfigInput | None = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: object = None,
        **_: object,
    ) -> None:
        if mpu is not None:
            raise EngineError("zero.Init(mpu=...) is not supported: all ranks are data-parallel", "drop mpu=")
        if remote_device not in (None, "none", "cpu", "cuda"):
            raise EngineError(f"zero.Init cannot place shards on {remote_device}", "drop remote_device=")
        self.enabled = enabled
        self._stack = ExitStack()
        if not enabled:
            return
        given = config_dict_or_path if config_dict_or_path is not None else config
        settings = None if given is None else load_config(given)
        if dtype is None and settings is not None:
            dtype = DTYPES[settings.dtype]
        self._dtype = dtype
        init_distributed()
        self._world = current_world()
        self._device = use_device(self._world)
        self._host_home = None if settings is None else host_home_of(settings, self._device)
        if remote_device == "cpu" and self._host_home is None:
            self._host_home = HostHome(lane_of(self._device), pin_memory)
        if module is not None:
            for owner in module.modules():
                self._shard(owner)

    def __enter__(self) -> None:
        if not self.enabled or Init._active is not None:  # inside another one, which does the work
            self.enabled = False
            return
        Init._active = self
        self._stack.callback(setattr, Init, "_active", None)
        if self._dtype is not None:
            self._stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(self._dtype)
        self._stack.enter_context(self._device)
        for kind in set(_subclasses(torch.nn.Module)):
            if "__init__" in kind.__dict__:
                self._wrap(kind)

        def new_class(kind: type[torch.nn.Module], /, **named: object) -> None:
            super(torch.nn.Module, kind).__init_subclass__(**named)
            if "__init__" in kind.__dict__:
                self._wrap(kind)

        # A function of its own: Python 3.10 would leave `kind` out for a bound method.
        self._replace(torch.nn.Module, "__init_subclass__", classmethod(new_class))
        self._replace(torch.nn.Module, "apply", _gathering_apply)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _wrap(self, kind: type[torch.nn.Module]) -> None:
        original: Callable[..., None] = kind.__dict__["__init__"]

        @functools.wraps(original)
        def build(module: torch.nn.Module, *args: Any, **named: Any) -> None:
            outermost = "_ds_in_init" not in module.__dict__
            if outermost:
                module.__dict__["_ds_in_init"] = True
            try:
                original(module, *args, **named)
            finally:
                if outermost:
                    module.__dict__.pop("_ds_in_init", None)
            if outermost:
                for owner in module.modules():
                    self._shard(owner)

        self._replace(kind, "__init__", build)

    def _replace(self, owner: type, name: str, value: object) -> None:
        if name in owner.__dict__:
            self._stack.callback(setattr, owner, name, owner.__dict__[name])
        else:
            self._stack.callback(delattr, owner, name)
        setattr(owner, name, value)

    def _shard(self, owner: torch.nn.Module) -> None:
        for name, param in owner.named_parameters(recurse=False):
            if home_of(param) is None:
                if param.is_meta:  # as skip_init builds it: the module around it shards what it has become
                    continue
                if self._dtype is not None and param.is_floating_point():
                    param.data = param.data.to(self._dtype)
                self._shard_one(f"{type(owner).__name__}.{name}", param)

    @torch.no_grad()
    def _shard_one(self, name: str, param: torch.nn.Parameter) -> None:
        spec = ParamSpec(name, param.numel(), FROZEN, str(param.dtype).removeprefix("torch."), unit=0)
        bucket = plan_layout([spec], self._world.size, param.numel()).buckets[0]
        sharding = Sharding(self._world.size, self._world.rank)
        build_sharded(bucket, [param], sharding, self._device, None, self._host_home)


def _subclasses(kind: type[torch.nn.Module]) -> Iterator[type[torch.nn.Module]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _gathering_apply(module: torch.nn.Module, fn: Callable[[torch.nn.Module], None]) -> torch.nn.Module:
    """`Module.apply` for sharded parameters: `fn` sees a module's own ones whole, rank 0's edits count."""
    from dslaunch.engine.zero import GatheredParameters

    for child in module.children():
        child.apply(fn)
    with GatheredParameters(list(module.parameters(recurse=False)), modifier_rank=0):
        fn(module)
    return module
