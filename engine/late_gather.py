"""Updated parameters that are waited for where the next forward reads them (stages 1 and 2).

After a step every bucket's all-gather is on its way; usually the step ends by waiting for all of them. With
LateGather the next forward waits instead, bucket by bucket, so that the network works under it; so does the
host that steps an offloaded optimizer, on one rank, where nothing is gathered. Whoever reads
a parameter of a module (its forward, `named_parameters`, `state_dict`) waits for that parameter's bucket.
A parameter that a script has kept in a list of its own is not watched: it has to be read after `finish`.
"""

from __future__ import annotations

import os
from collections.abc import ItemsView, Mapping, Sequence, ValuesView
from functools import partial

import torch

from dslaunch.engine.buckets import Bucket
from dslaunch.engine.lanes import Waitable

VARIABLE = "DSLAUNCH_OVERLAP_GATHER"
_Parameters = dict[str, torch.nn.Parameter | None]


def is_wanted() -> bool:
    """Whether the environment asks for it."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


class LateGather:
    """The all-gathers under way, and the modules that are watched."""

    def __init__(self, root: torch.nn.Module, buckets: Sequence[Bucket]) -> None:
        self._pending: dict[int, Waitable] = {}  # by bucket
        self._bucket_of = {id(param): id(bucket) for bucket in buckets for param in bucket.members}
        self._modules = [
            module
            for module in root.modules()
            if any(id(param) in self._bucket_of for param in module.parameters(recurse=False))
        ]
        self._handles = []
        for module in self._modules:
            # Some modules keep lists of their parameters and read no attribute (torch.nn.LSTM).
            own = {self._bucket_of.get(id(param), 0) for param in module.parameters(recurse=False)}
            self._handles.append(module.register_forward_pre_hook(partial(self._before, own)))
            module._parameters = LateParameters(module._parameters, self)

    def take(self, bucket: Bucket, pending: Waitable) -> None:
        """Wait for `bucket` when it is read."""
        self._pending[id(bucket)] = pending

    def need(self, param: torch.Tensor) -> None:
        """Wait for the bucket of `param`."""
        if self._pending:
            self._wait(self._bucket_of.get(id(param), 0))

    def finish(self) -> None:
        """Wait for all."""
        for key in list(self._pending):
            self._wait(key)

    def remove(self) -> None:
        """Wait for all, and watch nobody any more."""
        self.finish()
        for handle in self._handles:
            handle.remove()
        for module in self._modules:
            module._parameters = dict(module._parameters.items())
        self._handles, self._modules = [], []

    def _before(self, own: set[int], *_: object) -> None:
        if self._pending:
            for key in own:
                self._wait(key)

    def _wait(self, key: int) -> None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.wait()


class LateParameters(_Parameters):
    """A module's own parameters, waited for when they are read."""

    def __init__(self, plain: Mapping[str, torch.nn.Parameter | None], gather: LateGather) -> None:
        super().__init__(plain)
        self._gather = gather

    def __getitem__(self, name: str) -> torch.nn.Parameter | None:
        param = super().__getitem__(name)
        if param is not None:
            self._gather.need(param)
        return param

    def get(self, name: str, default: object = None) -> torch.nn.Parameter | None:
        self._gather.finish()
        return super().get(name, default)  # type: ignore[arg-type]

    def items(self) -> ItemsView[str, torch.nn.Parameter | None]:  # type: ignore[override]
        self._gather.finish()
        return super().items()

    def values(self) -> ValuesView[torch.nn.Parameter | None]:  # type: ignore[override]
        self._gather.finish()
        return super().values()

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        return dict, (dict(self.items()),)
