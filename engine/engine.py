"""The training engine a script drives: forward, backward, step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dslaunch.engine import log
from dslaunch.engine.autocast import forward_precision
from dslaunch.engine.batch import BatchSizes
from dslaunch.engine.checkpoint_load import CustomLoad, LoadRequest, load
from dslaunch.engine.checkpoint_save import SaveRequest, save
from dslaunch.engine.config import EngineConfig
from dslaunch.engine.dataloader import TrainingDataLoader
from dslaunch.engine.errors import CheckpointError, EngineError
from dslaunch.engine.lr_schedules import LrScheduler
from dslaunch.engine.optimizer import ShardedAdamW
from dslaunch.engine.ranks import Ranks
from dslaunch.engine.watch import Progress, Watch


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of; `initialize` puts it together."""

    module: torch.nn.Module
    config: EngineConfig
    batch: BatchSizes
    ranks: Ranks
    device: torch.device
    optimizer: ShardedAdamW | None
    lr_scheduler: LrScheduler | None
    training_dataloader: TrainingDataLoader | None


class Engine(torch.nn.Module):
    """A model under ZeRO. Attributes it does not have are looked up on `module`.

    The order of one micro step is `loss = engine(batch)`, `engine.backward(loss)`, `engine.step()`; every
    `gradient_accumulation_steps`-th `step()` updates the parameters, the others only count.
    """

    def __init__(self, parts: EngineParts) -> None:
        super().__init__()
        self.module = parts.module
        self.config = parts.config
        self.batch_sizes = parts.batch
        self.device = parts.device
        self.ranks = parts.ranks
        self.optimizer = parts.optimizer
        self.lr_scheduler = parts.lr_scheduler
        self.training_dataloader = parts.training_dataloader
        self.local_rank = parts.ranks.world.local_rank
        self.global_rank = parts.ranks.world.rank
        self.world_size = self.dp_world_size = parts.ranks.world.size
        self.global_steps = 0  # optimizer steps, left-out ones included
        self.global_samples = 0
        self.skipped_steps = 0
        self.micro_steps = 0
        self._boundary: bool | None = None  # what the script has set, None: the engine counts
        self._applied = False
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
        """The module's own forward."""
        with self.watch.phase("forward"), forward_precision(self.config.autocast, self.device):
            return self.module(*inputs, **named)

    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Accumulate the gradients of `loss` (a scalar) / accumulation steps; returns that quotient.

        `loss.backward()` works as well; the division is then the script's.
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
        if scale_wrt_gas and accumulation > 1:
            loss = loss / accumulation
        with self.watch.phase("backward"):
            loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        self.watch.loss(loss)
        return loss

    def step(self) -> None:
        """Count a micro step; at the boundary update parameters, schedule and counters. Collective.

        A step without a backward before it is a step with zero gradients.
        """
        optimizer = self._must_train()
        if not self._syncing:
            raise EngineError("step() inside no_sync()", "leave the no_sync block first")
        if self.is_gradient_accumulation_boundary():
            with self.watch.phase("step"):
                optimizer.step()
            self._applied = not optimizer.overflow
            self.global_steps += 1
            self.global_samples += self.batch_sizes.train
            if optimizer.overflow:
                self.skipped_steps += 1
                norm = optimizer.global_norm()
                log.warn(
                    self.global_rank, f"step {self.global_steps} is left out: the gradient norm is {norm}"
                )
            elif self.lr_scheduler is not None:
                self.lr_scheduler.step()
            self.watch.finished(self._progress(), self.batch_sizes)
        else:
            self._applied = False
        self.micro_steps += 1
        self._arm()

    def save_checkpoint(
        self,
        save_dir: str | Path,
        tag: str | int | None = None,
        client_state: Mapping[str, object] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Write `save_dir/tag` (default global_step<N>). Collective; rank 0's `client_state` is kept.

        Either the whole checkpoint appears and `latest` names it, or CheckpointError and nothing has changed.
        """
        if not str(save_dir):
            raise CheckpointError("save_checkpoint was given an empty save_dir", "name a directory")
        named = f"global_step{self.global_steps}" if tag is None else str(tag)
        state = {} if client_state is None else client_state
        save(self, SaveRequest(Path(save_dir), named, state, save_latest, exclude_frozen_parameters))
        return True

    def load_checkpoint(
        self,
        load_dir: str | Path,
        tag: str | int | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: CustomLoad | None = None,
    ) -> tuple[str, dict[str, object]] | tuple[None, None]:
        """Restore what `save_checkpoint` wrote, at any world size and stage; default: the `latest` tag.

        Returns the directory read and the client state, or (None, None) with a warning where there is
        nothing.
        """
        return load(
            self,
            LoadRequest(
                Path(load_dir),
                None if tag is None else str(tag),
                load_module_strict,
                load_optimizer_states,
                load_lr_scheduler_states,
                load_module_only,
                custom_load_fn,
            ),
        )

    def restart_accumulation(self) -> None:
        """The next micro step is the first of an optimizer step."""
        self.micro_steps = 0
        self._arm()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the accumulated gradients; they stay views into the buckets."""
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        else:
            super().zero_grad(set_to_none)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the current micro step ends with an optimizer step."""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.batch_sizes.accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Say for this and later micro steps whether they are the boundary; the engine stops counting."""
        self._boundary = is_boundary
        self._arm()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside accumulate on this rank; the next boundary `step()` averages it all."""
        if not self._syncing:
            raise EngineError("no_sync() inside no_sync()", "leave the outer block first")
        self._syncing = False
        self._arm()
        try:
            yield
        finally:
            self._syncing = True
            self._arm()

    def was_step_applied(self) -> bool:
        """Whether the last `step()` updated the parameters."""
        return self._applied

    def get_global_grad_norm(self) -> float | None:
        """The L2 norm of the last step's mean gradient over all ranks, before clipping."""
        return None if self.optimizer is None else self.optimizer.global_norm()

    def get_lr(self) -> list[float]:
        """The learning rate of every parameter group."""
        return [] if self.optimizer is None else [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self) -> list[object]:
        """The betas of every parameter group."""
        return [] if self.optimizer is None else [group["betas"] for group in self.optimizer.param_groups]

    def train_batch_size(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.batch_sizes.train

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of one forward on one rank."""
        return self.batch_sizes.micro

    def gradient_accumulation_steps(self) -> int:
        """Micro steps of one optimizer step."""
        return self.batch_sizes.accumulation

    def zero_optimization_stage(self) -> int:
        """0: everything on every rank; 1: optimizer state sharded."""
        return self.config.zero.stage

    def gradient_clipping(self) -> float:
        """The largest global gradient norm; 0 is no clipping."""
        return self.config.gradient_clipping

    def steps_per_print(self) -> int | None:
        """Optimizer steps between two progress lines; None: no lines."""
        return self.config.steps_per_print

    def bfloat16_enabled(self) -> bool:
        """Whether parameters are bf16."""
        return self.config.dtype == "bf16"

    def fp16_enabled(self) -> bool:
        """Always false: fp16 is not supported yet."""
        return False

    def module_state_dict(self) -> dict[str, Any]:
        """The module's state dict, without the `module.` prefix of `state_dict()`."""
        return self.module.state_dict()

    def _must_train(self) -> ShardedAdamW:
        if self.optimizer is None:
            raise EngineError(
                "must provide optimizer during init in order to use backward/step",
                "name an optimizer in the config, or pass optimizer= to initialize",
            )
        return self.optimizer

    def _arm(self) -> None:
        if self.optimizer is not None:
            self.optimizer.reducer.armed = self._syncing and self.is_gradient_accumulation_boundary()

    def _progress(self) -> Progress:
        loader = self.training_dataloader
        return Progress(
            self.global_steps,
            self.global_samples,
            self.skipped_steps,
            self.micro_steps + 1,
            self.get_lr(),
            self.get_mom(),
            0 if loader is None else max(loader.epoch - 1, 0),
        )


def _describe(loss: object) -> str:
    if not isinstance(loss, torch.Tensor):
        return type(loss).__name__
    return f"a tensor of shape {tuple(loss.shape)}" + ("" if loss.grad_fn is not None else " without grad_fn")
