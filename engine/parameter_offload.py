"""`engine.optimizer.parameter_offload`: the handles by which TRL takes stage 3's hooks off around generation.
Without an optimizer (a reference or reward model) `engine.optimizer` is that object itself.

While parameters are gathered for a whole generation the hooks have nothing to do; scripts then remove each of
`forward_hooks` and `backward_hooks`, and afterwards call `_register_deepspeed_module(module)`.
"""

from __future__ import annotations

import torch

from dslaunch.engine.gatherer import Gatherer
from dslaunch.engine.watched import show_externals


class HookHandle:
    """All of the engine's hooks of stage 3 as one handle; `gatherer` is None where one rank needs none."""

    def __init__(self, gatherer: Gatherer | None) -> None:
        self._gatherer = gatherer

    def remove(self) -> None:
        """Take the hooks off; parameters are then gathered by nobody but GatheredParameters."""
        if self._gatherer is not None:
            self._gatherer.detach()


class ParamCoordinator:
    """What scripts ask about the recorded order of gathering."""

    def __init__(self, gatherer: Gatherer | None) -> None:
        self._order = None if gatherer is None else gatherer.order

    def is_invalid_trace(self) -> bool:
        """Whether no order is known for the pass that is under way."""
        return self._order is not None and not self._order.is_known

    def _invalidate_trace(self) -> None:
        if self._order is not None:
            self._order.forget()


class ParameterOffload:
    """DeepSpeed's object of that name, as far as others touch it."""

    def __init__(self, module: torch.nn.Module, gatherer: Gatherer | None) -> None:
        self.module = module
        self.param_coordinator = ParamCoordinator(gatherer)
        self._gatherer = gatherer
        self.forward_hooks: list[HookHandle] = [HookHandle(gatherer)]
        self.backward_hooks: list[HookHandle] = [HookHandle(gatherer)]
        show_externals(module)

    def get_param_coordinator(self, training: bool = True) -> ParamCoordinator:
        """`param_coordinator`; older DeepSpeed has one for training and one for evaluation."""
        return self.param_coordinator

    def _register_deepspeed_module(self, module: torch.nn.Module) -> None:
        if module is self.module and not self.forward_hooks:
            if self._gatherer is not None:
                self._gatherer.attach()
            self.forward_hooks = [HookHandle(self._gatherer)]
            self.backward_hooks = [HookHandle(self._gatherer)]

    def empty_partition_cache(self) -> None:
        """Release the parameters that are gathered."""
        if self._gatherer is not None:
            self._gatherer.finish_pass()

    partition_all_parameters = empty_partition_cache
