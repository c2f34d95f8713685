"""Gathering a module's parameters ahead of its forward and backward, and releasing them after (stage 3).

Legend: `P` elements of a bucket.
Each unit has two hooks around its forward and one on what it returns, which runs before its backward; the
buckets behind them are gathered in the recorded order, as far ahead as the limits allow, but nothing for
backward before it begins: activations are at their height then. A trained bucket is released in backward
when its last gradient has arrived, a frozen one when the unit's inputs have theirs.
Parameters that a forward reads of another module (a tied head, an embedding's weight taken as a tensor) are
gathered when they are read and stay until the pass is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dslaunch.engine.gather_order import GatherOrder
from dslaunch.engine.sharded import ShardedBucket, ZeroParamStatus, sharded_bucket_of
from dslaunch.engine.units import Unit
from dslaunch.engine.watched import (
    externals_of,
    tensors_in,
    unwatch,
    watch,
)


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """In elements."""

    prefetch: int  # how far ahead buckets are gathered
    live: int  # how many elements are gathered at most, as far as nothing needs more


class Gatherer:
    """Owns the hooks and decides which buckets are gathered."""

    def __init__(
        self,
        root: torch.nn.Module,
        units: Sequence[Unit],
        buckets: Sequence[ShardedBucket],
        order: GatherOrder,
        limits: GatherLimits,
    ) -> None:
        self.root = root
        self.buckets = buckets
        self._numbers = {id(bucket): number for number, bucket in enumerate(buckets)}
        self.order = order
        self._limits = limits
        self._live: dict[int, int] = {}  # bucket -> its elements, of those gathered or on their way
        self._kept: set[int] = set()  # buckets that stay until the pass is over
        self._uses: dict[int, int] = {}  # forwards that used a frozen bucket and wait for their backward
        self._depth = 0  # of forwards of the root
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._needs: dict[int, list[int]] = {}
        for unit in units:
            self._needs.setdefault(id(unit.module), []).extend(
                number for number in self._numbers_of(unit.params)
            )
        self._units = {id(unit.module): unit for unit in units}
        self._watch: list[torch.nn.Module] = []
        self._watches = True
        self._attached = False
        self.attach()

    def attach(self) -> None:
        """Put the hooks on, unless they are."""
        if self._attached:
            return
        self._attached = True
        self._hook_root()
        for unit in self._units.values():
            self._hook(unit)
        if self._watches:
            self._watch = watch(self.root, self._read)

    def detach(self) -> None:
        """Take the hooks off; `attach` brings them back."""
        self.finish_pass()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        unwatch(self._watch)
        self._watch = []
        self._depth = 0
        self._attached = False

    def finish_pass(self) -> None:
        """Release everything: the pass (a forward, and its backward in training) is over."""
        self._kept.clear()
        self._uses.clear()
        for number in list(self._live):
            self._release(number)
        for bucket in self.buckets:
            bucket.second = None

    def bucket_complete(self, bucket: object) -> None:
        """All gradients of `bucket` have arrived in this backward pass: nothing needs its parameters."""
        number = self._numbers.get(id(bucket))
        if number is not None and number not in self._kept:
            self._release(number)

    def stop_watching(self) -> None:
        """Let modules have plain dicts of parameters again, which torch.compile can look into.

        Parameters that are read outside their unit then have to be registered.
        """
        unwatch(self._watch)
        self._watch, self._watches = [], False

    def _hook_root(self) -> None:
        def begin(module: torch.nn.Module, _: object) -> None:
            if self._depth == 0 and not _in_backward():
                self.finish_pass()
                self.order.begin((module.training, torch.is_grad_enabled()))
            self._depth += 1

        def end(_: torch.nn.Module, __: object, ___: object) -> None:
            self._depth -= 1
            if self._depth == 0 and not torch.is_grad_enabled() and not _in_backward():
                self.finish_pass()

        self._handles.append(self.root.register_forward_pre_hook(begin))
        self._handles.append(self.root.register_forward_hook(end, always_call=True))

    def _hook(self, unit: Unit) -> None:
        name = unit.name or type(unit.module).__name__
        own = self._needs[id(unit.module)]

        def before(module: torch.nn.Module, args: tuple[object, ...], named: Mapping[str, object]) -> None:
            needs = [*own, *self._numbers_of(externals_of(module))]
            self._need(needs, name)
            frozen = [number for number in needs if self.buckets[number].grad_shard is None]
            if frozen and torch.is_grad_enabled() and not _in_backward():
                self._count_uses(frozen, [t for t in tensors_in((args, named)) if t.requires_grad])

        def after(module: torch.nn.Module, _: object, output: object) -> None:
            needs = [*own, *self._numbers_of(externals_of(module))]
            handed_on = [t for t in tensors_in(output) if isinstance(t, torch.nn.Parameter)]
            self._kept.update(self._numbers_of(handed_on))  # whoever called computes with them
            outputs = [
                t
                for t in tensors_in(output)
                if torch.is_grad_enabled() and t.requires_grad and not isinstance(t, torch.nn.Parameter)
            ]
            for tensor in outputs:
                tensor.register_hook(lambda _: self._need(needs, name))  # type: ignore[no-untyped-call]
            if _in_backward():  # recomputed by a checkpoint: its backward follows at once
                return
            if torch.is_grad_enabled() and not outputs and any(p.requires_grad for p in unit.params):
                self._kept.update(needs)  # an output nobody can look into: keep what its backward may need
            upcoming = self.order.ahead()[:1]
            for number in needs:
                if number not in self._kept and number not in upcoming:
                    self._release(number)

        self._handles.append(unit.module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(unit.module.register_forward_hook(after))

    def _need(self, numbers: Sequence[int], where: str) -> None:
        """Gather these buckets, start on those that come next."""
        for number in numbers:
            self.order.step(number, where, _in_backward())
            self._start(number)
        self._prefetch()
        trains = torch.is_grad_enabled()
        for number in numbers:
            self.buckets[number].gather(exact=False)
            if trains:
                self.buckets[number].keep_second()

    def _prefetch(self) -> None:
        ahead = 0
        for number in self.order.ahead_of_turn():
            if number in self._live:
                continue
            numel = self.buckets[number].spec.numel
            # The next bucket is always worth it, however small the limit; 0 switches prefetching off.
            if self._limits.prefetch == 0 or (ahead and ahead + numel > self._limits.prefetch):
                return
            if sum(self._live.values()) + numel > self._limits.live:
                return
            ahead += numel
            self._start(number)

    def _start(self, number: int) -> None:
        self._live[number] = self.buckets[number].spec.numel
        self.buckets[number].in_use = True
        self.buckets[number].start_gather(exact=False)

    def _release(self, number: int) -> None:
        if self._live.pop(number, None) is not None:
            self.buckets[number].in_use = False
            self.buckets[number].release()

    def _count_uses(self, frozen: Sequence[int], inputs: Sequence[torch.Tensor]) -> None:
        """Release frozen buckets when the inputs of every forward that used them have their gradients."""
        for number in frozen:
            self._uses[number] = self._uses.get(number, 0) + 1

        def backward_over(_: object) -> None:
            for number in frozen:
                self._uses[number] = self._uses.get(number, 0) - 1
                if self._uses[number] == 0 and number not in self._kept:
                    self._release(number)

        if inputs:
            torch.autograd.graph.register_multi_grad_hook(inputs, backward_over)

    def _read(self, param: torch.Tensor, where: str) -> None:
        """A module's parameter is being read: have it here if a forward is doing so."""
        bucket = sharded_bucket_of(param)
        if bucket is None or bucket.status is ZeroParamStatus.AVAILABLE:
            return
        if self._depth or _in_backward():
            number = self._numbers[id(bucket)]
            self._need([number], where)
            self._kept.add(number)

    def _numbers_of(self, params: Sequence[torch.Tensor]) -> list[int]:
        found = dict.fromkeys(
            self._numbers[id(bucket)] for param in params if (bucket := sharded_bucket_of(param)) is not None
        )
        return list(found)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
