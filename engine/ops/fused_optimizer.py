"""What the fused optimizers share: torch's interface and state dict, one kernel call a group and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, cast

import torch
from torch.optim import Optimizer

from dslaunch.engine.ops import backends, in_graph
from dslaunch.engine.ops.in_graph import NUM_LISTS
from dslaunch.engine.ops.roster import Roster
from dslaunch.engine.ops.shard import PARAM_DTYPES, Control, Rule, Shard
from dslaunch.engine.ops.step import step_batch_

Group = dict[str, object]
State = dict[str, torch.Tensor]
Params = Iterable[torch.Tensor] | Iterable[Group]

# torch wraps these in @_disable_dynamo, which imports torch._dynamo at the first call: over a second.
_add_param_group = getattr(Optimizer.add_param_group, "__wrapped__", Optimizer.add_param_group)
_zero_grad = getattr(Optimizer.zero_grad, "__wrapped__", Optimizer.zero_grad)
_load_state_dict = getattr(Optimizer.load_state_dict, "__wrapped__", Optimizer.load_state_dict)
_state_dict = getattr(Optimizer.state_dict, "__wrapped__", Optimizer.state_dict)


class FusedOptimizer(Optimizer):
    """An optimizer whose step is one pass over memory.

    States are fp32. Parameters of bf16 and fp16 have an fp32 master beside them, `state[p]["master"]`, and
    are written with its rounded values. Parameters that are stepped together share their `state[p]["step"]`.
    With torch.amp.GradScaler, gradients are unscaled and steps with infinite ones left out inside the kernel.
    `capturable`: the step counter is on the GPU, and `lr` may be a tensor there, so that a CUDA graph of
    step() replays right, and loss scaling needs no word from the host.
    """

    state_names: ClassVar[tuple[str, ...]]  # as torch's optimizer of that name calls them
    counts_steps: ClassVar[bool] = True
    _step_supports_amp_scaling = True  # GradScaler then sets grad_scale and found_inf during step()

    def __init__(self, params: Params, defaults: Group) -> None:
        self._rosters: dict[int, Roster | None] = {}  # of group number; None: looked, and found none
        self._numbers: dict[int, int] | None = None
        super().__init__(cast("list[dict[str, object]]", params), defaults)

    def rule(self, group: Group, step: int, first: bool) -> Rule:
        """The rule of step number `step` of parameters of `group`; `first`: their states are new."""
        raise NotImplementedError

    def new_states(self, group: Group, master: torch.Tensor) -> State:
        """The states of a parameter before its first step."""
        return {name: torch.zeros_like(master, dtype=state_dtype(group)) for name in self.states_of(group)}

    def states_of(self, group: Group) -> tuple[str, ...]:
        """Which of `state_names` parameters of this group have."""
        return self.state_names

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every parameter that has a gradient; what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grad_scale = cast("torch.Tensor | None", getattr(self, "grad_scale", None))
        found_inf = cast("torch.Tensor | None", getattr(self, "found_inf", None))
        step_group = self._step_group_in_graph if torch.compiler.is_compiling() else self._step_group
        for number in range(len(self.param_groups)):
            step_group(number, None if grad_scale is None else grad_scale.reciprocal(), found_inf)
        return loss

    def _step_group(self, number: int, scale: torch.Tensor | None, found_inf: torch.Tensor | None) -> None:
        group: Group = self.param_groups[number]
        params = [p for p in cast("list[torch.Tensor]", group["params"]) if p.grad is not None]
        if not params:
            return
        on_gpu = bool(group.get("capturable")) and params[0].is_cuda
        if found_inf is not None and self.counts_steps and not on_gpu:
            if found_inf.item():  # the host counts the steps, so it must know
                return
            found_inf = None
        if group.get("maximize"):
            scale = torch.full((), -1.0, device=params[0].device) if scale is None else -scale
        if self._step_together(number, params, Control(scale, found_inf, lr=lr_on_gpu(group))):
            return
        for counter, first, members in self._by_clock(group, params):
            step = 0 if counter is None or on_gpu else int(counter)
            rule = self.rule(group, step, first)
            control = Control(scale, found_inf, counter if on_gpu else None, lr=lr_on_gpu(group))
            for shards in self._batches(group, members):
                step_batch_(rule, shards, control)
                control = replace(control, advance=False)

    def _step_group_in_graph(
        self, number: int, scale: torch.Tensor | None, found_inf: torch.Tensor | None
    ) -> None:
        """What torch.compile traces instead of _step_group."""
        group: Group = self.param_groups[number]
        lists: list[list[Any]] = [[] for _ in range(NUM_LISTS)]
        self._init_group(group, *lists)
        rule, *others = lists
        if rule:
            in_graph.step(rule[0], others, group, scale, found_inf)

    def _init_group(self, group: Group, *lists: list[Any]) -> None:
        """Fill the empty `lists` with what in_graph.lists_of says.

        The name and that form are torch._dynamo's: while it traces an optimizer it calls this one method, and
        takes from the lists what has become of it.
        """
        params = [p for p in cast("list[torch.Tensor]", group["params"]) if p.grad is not None]
        if not params:
            return
        new = [p for p in params if not self.state[p]]
        if new and group.get("dampening"):
            raise RuntimeError(
                f"the first step of {type(self).__name__} with dampening is unlike the others and cannot be "
                "compiled\nhint: call step() once outside of torch.compile"
            )
        on_gpu = bool(group.get("capturable")) and params[0].is_cuda
        started = torch.zeros((), device=params[0].device if on_gpu else "cpu")
        for p in new:
            self._start(group, p, started)
        states = [self.state[p] for p in params]
        streams = [self._streams()[id(p)] for p in params]
        rule = self.rule(group, 0, False)
        for empty, found in zip(
            lists, in_graph.lists_of(rule, params, states, self.states_of(group), streams), strict=True
        ):
            empty += found

    def _step_together(self, number: int, params: Sequence[torch.Tensor], control: Control) -> bool:
        """The short way, for parameters that all step and are all alike; False: nothing is done."""
        group: Group = self.param_groups[number]
        if number in self._rosters:
            roster = self._rosters[number]
            if roster is not None and not roster.is_of(params, self.state):
                del self._rosters[number]
                return False
        else:
            if len(params) < len(cast("list[torch.Tensor]", group["params"])):
                return False
            states = [self.state[p] for p in params]
            if not all(states):
                return False  # their first step
            streams = [self._streams()[id(p)] for p in params]
            roster = self._rosters[number] = Roster.of(params, states, self.states_of(group), streams)
        if roster is None or (backend := backends.of(params[0].device)) is None:
            return False
        counter = roster.clock() if self.counts_steps else None
        batch = roster.batch([cast(torch.Tensor, p.grad) for p in params])
        if batch is None or (counter is None and self.counts_steps):
            return False
        on_gpu = bool(group.get("capturable")) and params[0].is_cuda
        if counter is not None and not on_gpu:
            counter += 1
        rule = self.rule(group, 0 if counter is None or on_gpu else int(counter), False)
        backend.step(rule, batch, replace(control, counter=counter if on_gpu else None))
        return True

    def _by_clock(
        self, group: Group, params: Sequence[torch.Tensor]
    ) -> list[tuple[torch.Tensor | None, bool, list[torch.Tensor]]]:
        """Those that have made the same steps, with their counter; the host's is counted up already."""
        on_gpu = bool(group.get("capturable")) and params[0].is_cuda
        new = [p for p in params if not self.state[p]]
        started = torch.zeros((), device=params[0].device if on_gpu else "cpu")
        for p in new:
            self._start(group, p, started)
        if not self.counts_steps:
            fresh = set(map(id, new))
            old = [p for p in params if id(p) not in fresh]
            return [(None, first, some) for first, some in ((False, old), (True, new)) if some]
        clocks: dict[int, list[torch.Tensor]] = {}
        for p in params:
            clocks.setdefault(id(self.state[p]["step"]), []).append(p)
        if len(params) < len(cast("list[torch.Tensor]", group["params"])):
            self._part_from_idle(group, clocks)
        counters = [(self.state[members[0]]["step"], members) for members in clocks.values()]
        if not on_gpu:
            for counter, _ in counters:
                counter += 1
        return [(counter, False, members) for counter, members in counters]

    def _part_from_idle(self, group: Group, clocks: dict[int, list[torch.Tensor]]) -> None:
        """Those who step now no longer share a counter with those who do not."""
        members = set(map(id, chain.from_iterable(clocks.values())))
        for p in cast("list[torch.Tensor]", group["params"]):
            step = self.state[p].get("step") if p in self.state and id(p) not in members else None
            if step is not None and id(step) in clocks:
                own = step.clone()
                for member in clocks[id(step)]:
                    self.state[member]["step"] = own

    def _start(self, group: Group, p: torch.Tensor, counter: torch.Tensor) -> None:
        state: State = self.state[p]
        if self.counts_steps:
            state["step"] = counter
        master = p
        if p.dtype in PARAM_DTYPES:
            master = state["master"] = p.detach().float()
        state |= self.new_states(group, master)

    def _batches(self, group: Group, params: Sequence[torch.Tensor]) -> Iterable[list[Shard]]:
        """Shards of one device and the same dtypes."""
        names = self.states_of(group)
        batches: dict[object, list[Shard]] = {}
        for p in params:
            state: State = self.state[p]
            grad = p.grad
            assert grad is not None
            if grad.is_sparse:
                raise TypeError(f"{type(self).__name__} expects dense gradients but got a sparse one")
            low = p.dtype in PARAM_DTYPES
            shard = Shard(
                state["master"] if low else p,
                tuple([state[name] for name in names]),
                grad,
                p if low else None,
                stream=self._streams()[id(p)],
            )
            key = (p.dtype, grad.dtype, p.device)
            if key in batches:
                batches[key].append(shard)
            else:
                batches[key] = [shard]
        return batches.values()

    def _streams(self) -> dict[int, int]:
        """The number of each parameter, by id: its stream of stochastic rounding."""
        if self._numbers is None:
            every = chain.from_iterable(group["params"] for group in self.param_groups)
            self._numbers = {id(p): number for number, p in enumerate(every)}
        return self._numbers

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._rosters, self._numbers = {}, None

    def add_param_group(self, param_group: Group) -> None:
        """See torch.optim.Optimizer.add_param_group."""
        _add_param_group(self, param_group)
        self._numbers = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See torch.optim.Optimizer.zero_grad."""
        _zero_grad(self, set_to_none)

    def state_dict(self) -> dict[str, object]:
        """As torch.optim's of the same name; every parameter's `step` is a tensor of its own there."""
        packed = cast("dict[str, object]", _state_dict(self))
        states = cast("dict[int, State]", packed["state"])
        packed["state"] = {
            index: {name: value.clone() if name == "step" else value for name, value in state.items()}
            for index, state in states.items()
        }
        return packed

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """From this optimizer's or torch's own state_dict. States stay fp32 also where parameters are not."""
        _load_state_dict(self, state_dict)
        self._rosters.clear()
        saved_groups = cast("list[dict[str, list[int]]]", state_dict["param_groups"])
        saved = cast("dict[int, dict[str, object]]", state_dict["state"])
        indices = chain.from_iterable(group["params"] for group in saved_groups)
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        clocks: dict[tuple[int, float, torch.device], torch.Tensor] = {}
        group_of = {id(p): (i, g) for i, g in enumerate(self.param_groups) for p in g["params"]}
        for index, p in zip(indices, params, strict=True):
            if index in saved:
                number, group = group_of[id(p)]
                self.state[p] = self._loaded(group, p, saved[index])
                if (step := self.state[p].get("step")) is not None:
                    self.state[p]["step"] = clocks.setdefault((number, float(step), step.device), step)

    def _loaded(self, group: Group, p: torch.Tensor, saved: dict[str, object]) -> State:
        state: State = {}
        for name in (*self.states_of(group), *(("master",) if p.dtype in PARAM_DTYPES else ())):
            value = saved.get(name)
            if isinstance(value, torch.Tensor):
                dtype = torch.float32 if name == "master" else state_dtype(group)
                state[name] = torch.empty_like(p, dtype=dtype).copy_(value)
            elif name == "master":
                state[name] = p.detach().float()
        if self.counts_steps:
            step = float(cast("torch.Tensor | float", saved["step"]))
            state["step"] = torch.tensor(
                step, device=p.device if group.get("capturable") and p.is_cuda else "cpu"
            )
        missing = [name for name in self.states_of(group) if name not in state]
        if missing and not self.counts_steps:
            return {}  # a momentum buffer that has not started
        if missing:
            raise ValueError(
                f"the state dict of a {type(self).__name__} expects {missing} but has {list(saved)}"
            )
        return state


def state_dtype(group: Group) -> torch.dtype:
    """What states are kept in."""
    return cast("torch.dtype", group.get("moment_dtype", torch.float32))


def lr_on_gpu(group: Group) -> torch.Tensor | None:
    """The learning rate where it is on the GPU and shall stay there."""
    lr = group["lr"]
    return lr if group.get("capturable") and isinstance(lr, torch.Tensor) and lr.is_cuda else None
