"""The training engine a script drives: forward, backward, step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dslaunch.engine.autocast import forward_precision
from dslaunch.engine.batch import BatchSizes
from dslaunch.engine.casting import cast_floating
from dslaunch.engine.checkpoint_background import Saves
from dslaunch.engine.config import EngineConfig
from dslaunch.engine.dataloader import TrainingDataLoader
from dslaunch.engine.engine_info import EngineInfo
from dslaunch.engine.engine_progress import EngineProgress
from dslaunch.engine.engine_settings import EngineSettings
from dslaunch.engine.engine_weights import EngineWeights
from dslaunch.engine.errors import EngineError
from dslaunch.engine.gatherer import Gatherer
from dslaunch.engine.lr_schedules import LrScheduler
from dslaunch.engine.model_weights import make_whole
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.parameter_offload import ParameterOffload
from dslaunch.engine.parking import Parking
from dslaunch.engine.placement import Placement
from dslaunch.engine.ranks import Ranks
from dslaunch.engine.units import compilable
from dslaunch.engine.watch import Watch
from dslaunch.engine.watched import hide_externals


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of; `initialize` puts it together."""

    module: torch.nn.Module
    config: EngineConfig
    raw_config: Mapping[str, object]
    batch: BatchSizes
    ranks: Ranks
    device: torch.device
    placement: Placement
    gatherer: Gatherer | None  # of stage 3 on several ranks
    optimizer: ShardedOptimizer | None
    parameter_offload: ParameterOffload | None  # of stage 3
    lr_scheduler: LrScheduler | None
    training_dataloader: TrainingDataLoader | None
    saves: Saves


class Engine(EngineInfo, EngineProgress, EngineSettings, EngineWeights, torch.nn.Module):
    """A model under ZeRO. Attributes it does not have are looked up on `module`.

    The order of one micro step is `loss = engine(batch)`, `engine.backward(loss)`, `engine.step()`; every
    `gradient_accumulation_steps`-th `step()` updates the parameters, the others only count.
    """

    def __init__(self, parts: EngineParts) -> None:
        super().__init__()
        self.module = parts.module
        self.settings = self._config = parts.config
        self.config = dict(parts.raw_config)  # as given; what Hugging Face reads
        self.batch_sizes = parts.batch
        self.device = parts.device
        self.ranks = parts.ranks
        self.placement = parts.placement
        self.gatherer = parts.gatherer
        self.zero_optimizer = parts.optimizer
        self.parameter_offload = parts.parameter_offload
        self.lr_scheduler = parts.lr_scheduler
        self.training_dataloader = parts.training_dataloader
        self.saves = parts.saves
        self.local_rank = parts.ranks.world.local_rank
        self.global_rank = parts.ranks.world.rank
        self.world_size = self.dp_world_size = parts.ranks.world.size
        self.mp_world_size = 1
        self.mpu = None
        self.is_compiled = False
        self.loaded_checkpoint_dp_world_size: int | None = None
        self.global_steps = 0  # optimizer steps, left-out ones included
        self.global_samples = 0
        self.micro_steps = 0
        self.parking = Parking()
        self._boundary: bool | None = None  # what the script has set, None: the engine counts
        self._syncing = True
        self.watch = Watch(parts.config, parts.module, parts.ranks.world, parts.device)
        self.monitor = self.watch.monitors
        weakref.finalize(self, self.watch.close)
        self._arm()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's own forward; inputs are cast under fp16.auto_cast."""
        self.parking.check("forward", "lp_params")
        if self.zero_optimizer is not None and torch.is_grad_enabled():
            self.zero_optimizer.reducer.after_backward()
        if self.settings.fp16.auto_cast and self.settings.dtype == "fp16":
            inputs, named = cast_floating((inputs, named), torch.float16)
        with self.watch.phase("forward"), forward_precision(self.settings.autocast, self.device):
            return self.module(*inputs, **named)

    def train(self, mode: bool = True) -> Engine:
        """Put the module into training mode (or not); returns the engine."""
        super().train(mode)
        return self

    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Accumulate the gradients of `loss` (a scalar) / accumulation steps; returns that quotient.

        In fp16 what is run backward is that quotient times the loss scale. `loss.backward()` works as well;
        the division, and `engine.scale(loss)` in fp16, are then the script's.
        """
        optimizer = self._must_train()
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.grad_fn is None:
            raise EngineError(
                f"loss must be a scalar tensor with grad_fn, but got {_describe(loss)}",
                "reduce the loss with .mean(), and compute it with gradients enabled",
            )
        if optimizer.reducer.has_sent:
            raise EngineError(
                "backward was called again after the gradients of this step had been averaged over the ranks",
                "call engine.step() first, or set zero_optimization.overlap_comm to false",
            )
        accumulation = self.batch_sizes.accumulation
        if scale_wrt_gas and accumulation > 1 and self.settings.managed_gradient_accumulation:
            loss = loss / accumulation
        scaled = self.scale(loss)
        with self.watch.phase("backward"):
            scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
            optimizer.reducer.after_backward()
        if self.gatherer is not None and not retain_graph:
            self.gatherer.finish_pass()
        self.watch.loss(loss)
        return loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the loss scale, for scripts that call `.backward()` on it; as it is but in fp16."""
        factor = self.loss_scale()
        return loss if factor == 1 else loss.float() * factor

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Count a micro step; at the boundary update parameters, schedule and counters. Collective.

        `lr_kwargs` go to the scheduler's step.

        A step without a backward before it is a step with zero gradients.
        """
        optimizer = self._must_train()
        if not self._syncing:
            raise EngineError(
                "It is illegal to call Engine.step() inside no_sync context manager",
                "leave the no_sync block first",
            )
        self.settle()
        self._applied = False
        if self.is_gradient_accumulation_boundary():
            if self.gatherer is not None:
                self.gatherer.finish_pass()
            with self.watch.phase("step"):
                optimizer.step()
            self.global_steps += 1
            self.global_samples += self.batch_sizes.train
            self._conclude(optimizer, lr_kwargs or {})
            if self.watch.is_told(self.global_steps):
                self.settle()
            self.watch.finished(self._progress(), self.batch_sizes)
        else:
            optimizer.reducer.after_backward()
        self.micro_steps += 1
        self._arm()

    def restart_accumulation(self) -> None:
        """The next micro step is the first of an optimizer step."""
        self.micro_steps = 0
        self._arm()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the accumulated gradients; they stay views into the buckets."""
        if self.zero_optimizer is not None:
            self.zero_optimizer.zero_grad()
        else:
            super().zero_grad(set_to_none)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the current micro step ends with an optimizer step."""
        if self._boundary is not None:
            return self._boundary
        if not self.settings.managed_gradient_accumulation:
            return True
        return (self.micro_steps + 1) % self.batch_sizes.accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Say for this and later micro steps whether they are the boundary; the engine stops counting."""
        self._boundary = is_boundary
        self._arm()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside accumulate on this rank; the next boundary `step()` averages it all."""
        if not self._syncing:
            raise EngineError("no_sync context manager reentry is unsupported", "leave the outer block first")
        self._syncing = False
        self._arm()
        try:
            yield
        finally:
            self._syncing = True
            self._arm()

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """As `no_sync`, but what was accumulated is averaged when the block ends."""
        with self.no_sync():
            yield
        self.allreduce_gradients()

    def allreduce_gradients(self, bucket_size: int | None = None) -> None:
        """Average the gradients over the ranks now; `step()` would do it. Collective.

        `bucket_size` has no effect: buckets are laid out once.
        """
        self._must_train().reducer.finish()

    def empty_partition_cache(self) -> None:
        """Release the parameters that stage 3 has gathered; wait for those that are on their way."""
        if self.gatherer is not None:
            self.gatherer.finish_pass()
        if self.zero_optimizer is not None and self.zero_optimizer.late_gather is not None:
            self.zero_optimizer.late_gather.finish()
        if self.zero_optimizer is not None:
            self.zero_optimizer.steps.finish_stepping()

    def _end_late_gather(self) -> None:
        if self.zero_optimizer is not None and self.zero_optimizer.late_gather is not None:
            self.zero_optimizer.late_gather.remove()
            self.zero_optimizer.steps.wait_late(None)

    def compile(self, backend: str = "inductor", compile_kwargs: Mapping[str, Any] | None = None) -> None:
        """torch.compile the module in place: as a whole, or unit by unit where units are gathered."""
        self._end_late_gather()
        targets = [self.module]
        if self.gatherer is not None:
            targets = compilable(self.placement.units)
            self.gatherer.stop_watching()
        for target in targets:
            forward = torch.compile(target.forward, backend=backend, **(compile_kwargs or {}))
            target.forward = forward
        self.is_compiled = True

    def destroy(self) -> None:
        """Take all hooks off the module and forget optimizer state; sharded parameters become whole again.

        Collective at stage 3. The module can be given to another engine. CheckpointError if a checkpoint that
        was being written in the background could not be.
        """
        self.saves.finish()
        self._end_late_gather()
        self.reload_states()
        if self.gatherer is not None:
            self.gatherer.detach()
            self.gatherer = None
        if self.zero_optimizer is not None:
            self.zero_optimizer.reducer.remove()
        make_whole(self.module)
        hide_externals(self.module)
        self.zero_optimizer = self.parameter_offload = None
        self.lr_scheduler = None

    def _must_train(self) -> ShardedOptimizer:
        self.parking.check("backward() or step()")
        if self.zero_optimizer is None:
            raise EngineError(
                "must provide optimizer during init in order to use backward/step",
                "name an optimizer in the config, or pass optimizer= to initialize",
            )
        return self.zero_optimizer

    def _arm(self) -> None:
        if self.zero_optimizer is not None:
            self.zero_optimizer.reducer.armed = self._syncing and self.is_gradient_accumulation_boundary()


def _describe(loss: object) -> str:
    if not isinstance(loss, torch.Tensor):
        return type(loss).__name__
    return f"a tensor of shape {tuple(loss.shape)}" + ("" if loss.grad_fn is not None else " without grad_fn")
