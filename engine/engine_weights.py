"""What an engine does with its weights as a whole: state dicts, consolidated files, checkpoints."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from dslaunch.engine.checkpoint_background import Saves
from dslaunch.engine.checkpoint_load import CustomLoad, LoadRequest, load
from dslaunch.engine.checkpoint_save import SaveRequest, save
from dslaunch.engine.config_values import EngineConfig
from dslaunch.engine.errors import CheckpointError, EngineError
from dslaunch.engine.model_weights import consolidated, load_module, save_16bit_model
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.parking import Parking, chosen_kinds, tensors_of

if TYPE_CHECKING:
    from dslaunch.engine.engine import Engine


class EngineWeights:
    """Mixed into `Engine`."""

    module: torch.nn.Module
    zero_optimizer: ShardedOptimizer | None
    global_rank: int
    global_steps: int
    settings: EngineConfig
    saves: Saves
    parking: Parking

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
        With `checkpoint.async` this returns once the state is copied; what goes wrong later is raised by the
        next call, or by `wait_for_checkpoint`.
        """
        cast("Engine", self).settle()
        if not str(save_dir):
            raise CheckpointError("save_checkpoint was given an empty save_dir", "name a directory")
        self.parking.check("save_checkpoint()")
        named = f"global_step{self.global_steps}" if tag is None else str(tag)
        state = {} if client_state is None else client_state
        save(
            cast("Engine", self),
            SaveRequest(
                Path(save_dir),
                named,
                state,
                save_latest,
                exclude_frozen_parameters,
                self.settings.checkpoint.keep_last,
            ),
        )
        return True

    def offload_states(
        self,
        include: Container[object] | None = None,
        device: object = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Free the device's memory of an engine that is idle, until `reload_states`.

        `include` is some of optim_states, hp_params (masters), lp_params, lp_grads and
        contiguous_grad_buffer; default: all. Without lp_params, forwards still run; masters are half of
        the parameters, or at stage 3 their shards, and go with those. `non_blocking` has no effect.
        """
        if getattr(device, "value", device) != "cpu":
            raise EngineError(f"offload_states(device={device!r}) is not supported", 'pass device="cpu"')
        kinds = chosen_kinds(include)
        engine = cast("Engine", self)
        engine.empty_partition_cache()
        optimizer = self.zero_optimizer
        if "contiguous_grad_buffer" in kinds and optimizer is not None:
            optimizer.reducer.free_buffers()
        buckets = [*engine.placement.trained, *engine.placement.frozen]
        for kind in kinds:
            self.parking.park(kind, tensors_of(kind, buckets), pin_memory)

    def reload_states(self, non_blocking: bool = False) -> None:
        """Bring back what `offload_states` has put away."""
        self.parking.bring_back()

    def wait_for_checkpoint(self) -> None:
        """Return when the last checkpoint is in place; CheckpointError if it could not be written."""
        self.saves.finish()

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
        cast("Engine", self).settle()
        self.parking.check("load_checkpoint()")
        return load(
            cast("Engine", self),
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

    def module_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any]:
        """The module's state dict, without the `module.` prefix of `state_dict()`; shards at stage 3."""
        frozen = {name for name, param in self.module.named_parameters() if not param.requires_grad}
        return {
            name: value
            for name, value in self.module.state_dict().items()
            if not (exclude_frozen_parameters and name in frozen)
        }

    def load_module_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load whole tensors into the module, sharded or not, and take the masters from them."""
        load_module(cast("Engine", self), dict(state_dict), strict)
        if self.zero_optimizer is not None:
            self.zero_optimizer.refresh_masters()

    def save_16bit_model(
        self,
        save_dir: str | Path,
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Write the whole model's weights in the compute dtype. Collective; rank 0 writes.

        False at stage 3 unless `stage3_gather_16bit_weights_on_model_save` allows gathering.
        """
        return save_16bit_model(cast("Engine", self), save_dir, save_filename, exclude_frozen_parameters)

    save_fp16_model = save_16bit_model  # DeepSpeed's old name

    def _consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, Any] | None:
        """The whole model's weights on rank 0, None elsewhere. Collective at stage 3."""
        keep = self.global_rank == 0
        found = consolidated(self.module, exclude_frozen_parameters, keep)
        return found if keep else None

    def _zero3_consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, Any] | None:
        """The same; Hugging Face calls it by this name."""
        return self._consolidated_16bit_state_dict(exclude_frozen_parameters)
