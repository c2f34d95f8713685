"""What a module's forward reads beside its inputs: its own parameters, and those of other modules.

Sharded parameters that another module's forward reads (a tied head, an embedding's weight taken as a tensor)
are noticed when they are read, or named by `register_external_parameter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial

import torch

from dslaunch.engine.buckets import home_of
from dslaunch.engine.sharded import ZeroParamStatus, sharded_bucket_of

EXTERNALS = "_ds_external_parameters"  # on a module: what register_external_parameter added


class WatchedParameters(dict[str, torch.nn.Parameter | None]):
    """A module's own parameters; says when a sharded one is read."""

    def __init__(
        self,
        plain: Mapping[str, torch.nn.Parameter | None],
        read: Callable[[torch.Tensor, str], None],
        where: str,
    ) -> None:
        super().__init__(plain)
        self._read = read
        self._where = where

    def __getitem__(self, name: str) -> torch.nn.Parameter | None:
        param = super().__getitem__(name)
        if param is not None and param.__dict__.get("ds_status") is not ZeroParamStatus.AVAILABLE:
            self._read(param, self._where)
        return param

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        return dict, (dict(self.items()),)


def watch(root: torch.nn.Module, read: Callable[[torch.Tensor, str], None]) -> list[torch.nn.Module]:
    """Have `read(parameter, class name of the module)` called when a sharded parameter is read of a module
    while it is not gathered; `unwatch` takes the result back.
    """
    watched = []
    for module in root.modules():
        if any(sharded_bucket_of(param) is not None for param in module.parameters(recurse=False)):
            module._parameters = WatchedParameters(module._parameters, read, type(module).__name__)
            watched.append(module)
    return watched


def unwatch(watched: Sequence[torch.nn.Module]) -> None:
    """Let modules have plain dicts of parameters again."""
    for module in watched:
        module._parameters = dict(module._parameters.items())


def externals_of(module: torch.nn.Module) -> Sequence[torch.nn.Parameter]:
    """What was registered with `module`."""
    found: Sequence[torch.nn.Parameter] = module.__dict__.get(EXTERNALS, ())
    return found


def show_externals(root: torch.nn.Module) -> None:
    """Give every module DeepSpeed's `ds_external_parameters()`."""
    for module in root.modules():
        module.__dict__["ds_external_parameters"] = partial(_externals, module)


def hide_externals(root: torch.nn.Module) -> None:
    """Take `show_externals` back."""
    for module in root.modules():
        module.__dict__.pop("ds_external_parameters", None)


def _externals(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, parameter) of what was registered with `module`."""
    for number, param in enumerate(externals_of(module)):
        home = home_of(param)
        yield str(number) if home is None else home.name, param


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in what a module takes or returns."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from tensors_in(getattr(value, part.name))
