"""`deepspeed.DeepSpeedConfig`: the configuration as an object, for scripts that read it themselves."""

from __future__ import annotations

from dataclasses import dataclass

from dslaunch.compat.zero_config import zero_config
from dslaunch.engine.batch import resolve_batch
from dslaunch.engine.config import load_config
from dslaunch.engine.config_source import ConfigInput, load_source
from dslaunch.engine.config_values import BatchRequest
from dslaunch.engine.distributed import current_world


@dataclass(frozen=True, slots=True)
class Bf16Section:
    """The section bf16."""

    enabled: bool = False


class DeepSpeedConfig:
    """A configuration that was read and checked; ConfigError where something is wrong with it.

    What is not among the attributes is in `settings`, the engine's own value.
    """

    def __init__(self, config: ConfigInput, mpu: object = None, mesh_device: object = None) -> None:
        self.settings = load_config(config)
        self._param_dict = dict(load_source(config).raw)
        self.world_size = current_world().size
        self.train_batch_size = self.settings.batch.train_batch_size
        self.train_micro_batch_size_per_gpu = self.settings.batch.train_micro_batch_size_per_gpu
        self.gradient_accumulation_steps = self.settings.batch.gradient_accumulation_steps
        self._configure_train_batch_size()
        self.gradient_clipping = self.settings.gradient_clipping
        self.steps_per_print = self.settings.steps_per_print
        self.zero_config = zero_config(self._param_dict)
        self.zero_optimization_stage = self.settings.zero.stage
        self.zero_enabled = self.settings.zero.stage > 0
        self.float16_enabled = self.fp16_enabled = self.settings.dtype == "fp16"
        self.bfloat16_enabled = self.settings.dtype == "bf16"
        optimizer, scheduler = self.settings.optimizer, self.settings.scheduler
        self.optimizer_name = None if optimizer is None else optimizer.type.lower()
        self.optimizer_params = None if optimizer is None else dict(optimizer.params)
        self.scheduler_name = None if scheduler is None else scheduler.type
        self.scheduler_params = None if scheduler is None else dict(scheduler.params)

    def _configure_train_batch_size(self) -> None:
        """Fill in what is None of the three batch sizes; ConfigError, an AssertionError, if they disagree."""
        request = BatchRequest(
            self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps
        )
        batch = resolve_batch(request, current_world())
        self.train_batch_size = batch.train
        self.train_micro_batch_size_per_gpu = batch.micro
        self.gradient_accumulation_steps = batch.accumulation
