"""`deepspeed.DeepSpeedConfig`: the configuration as an object, for scripts that read it themselves."""

from __future__ import annotations

from dslaunch.engine.batch import resolve_batch
from dslaunch.engine.config import load_config
from dslaunch.engine.config_source import ConfigInput, load_source
from dslaunch.engine.distributed import current_world


class DeepSpeedConfig:
    """A configuration that was read and checked; ConfigError where something is wrong with it.

    What is not among the attributes is in `settings`, the engine's own value.
    """

    def __init__(self, config: ConfigInput, mpu: object = None, mesh_device: object = None) -> None:
        self.settings = load_config(config)
        self._param_dict = dict(load_source(config).raw)
        world = current_world()
        batch = resolve_batch(self.settings.batch, world)
        self.world_size = world.size
        self.train_batch_size = batch.train
        self.train_micro_batch_size_per_gpu = batch.micro
        self.gradient_accumulation_steps = batch.accumulation
        self.gradient_clipping = self.settings.gradient_clipping
        self.steps_per_print = self.settings.steps_per_print
        self.zero_config = self.settings.zero
        self.zero_optimization_stage = self.settings.zero.stage
        self.zero_enabled = self.settings.zero.stage > 0
        self.float16_enabled = self.fp16_enabled = self.settings.dtype == "fp16"
        self.bfloat16_enabled = self.settings.dtype == "bf16"
        optimizer, scheduler = self.settings.optimizer, self.settings.scheduler
        self.optimizer_name = None if optimizer is None else optimizer.type.lower()
        self.optimizer_params = None if optimizer is None else dict(optimizer.params)
        self.scheduler_name = None if scheduler is None else scheduler.type
        self.scheduler_params = None if scheduler is None else dict(scheduler.params)
