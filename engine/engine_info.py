"""What an engine tells about itself: DeepSpeed's getters, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from dslaunch.engine.batch import BatchSizes
from dslaunch.engine.config import EngineConfig
from dslaunch.engine.dataloader import TrainingDataLoader
from dslaunch.engine.distributed import current_world
from dslaunch.engine.errors import EngineError
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.parameter_offload import ParameterOffload
from dslaunch.engine.placement import DTYPES

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class EngineInfo:
    """Mixed into `Engine`."""

    settings: EngineConfig
    batch_sizes: BatchSizes
    zero_optimizer: ShardedOptimizer | None
    parameter_offload: ParameterOffload | None
    dp_world_size: int
    global_rank: int

    def set_lr(self, lr: float) -> None:
        """Give every parameter group this learning rate."""
        if self.zero_optimizer is not None:
            self.zero_optimizer.set_lr(lr)

    def get_global_grad_norm(self) -> float | None:
        """The L2 norm of the last step's mean gradient over all ranks, unscaled and before clipping."""
        return None if self.zero_optimizer is None else self.zero_optimizer.global_norm()

    def train_batch_size(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.batch_sizes.train

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of one forward on one rank."""
        return self.batch_sizes.micro

    def gradient_accumulation_steps(self) -> int:
        """Micro steps of one optimizer step."""
        return self.batch_sizes.accumulation

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Take so many samples an optimizer step from the next one on, by more or fewer micro steps."""
        per_round = self.batch_sizes.micro * self.dp_world_size
        if train_batch_size < per_round or train_batch_size % per_round:
            raise ValueError(
                "Train batch size must be divisible by micro-batch data parallelism: "
                f"{train_batch_size} is not a multiple of {self.batch_sizes.micro} * {self.dp_world_size}"
            )
        self.batch_sizes = BatchSizes(train_batch_size, self.batch_sizes.micro, train_batch_size // per_round)

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Take so many samples a forward; the number of micro steps stays, the train batch follows."""
        accumulation = self.batch_sizes.accumulation
        self.batch_sizes = BatchSizes(
            micro_batch_size * accumulation * self.dp_world_size, micro_batch_size, accumulation
        )

    def zero_optimization_stage(self) -> int:
        """0: everything on every rank; 1: optimizer state sharded; 2: gradients too; 3: parameters too."""
        return self.settings.zero.stage

    def zero_optimization(self) -> bool:
        """Whether anything is sharded."""
        return self.settings.zero.stage > 0

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether gradients are sharded."""
        return self.settings.zero.stage >= 2

    def zero_optimization_partition_weights(self) -> bool:
        """Whether parameters are sharded."""
        return self.settings.zero.stage == 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """Whether `save_16bit_model` may gather the whole model of stage 3."""
        return self.settings.zero.stage3.gather_16bit_weights_on_model_save

    def gradient_clipping(self) -> float:
        """The largest global gradient norm; 0 is no clipping."""
        return self.settings.gradient_clipping

    def steps_per_print(self) -> int | None:
        """Optimizer steps between two progress lines; None: no lines."""
        return self.settings.steps_per_print

    def wall_clock_breakdown(self) -> bool:
        """Whether the config asks for the times of forward, backward and step."""
        return bool(getattr(self.settings, "wall_clock_breakdown", False))

    def bfloat16_enabled(self) -> bool:
        """Whether parameters are bf16."""
        return self.settings.dtype == "bf16"

    def fp16_enabled(self) -> bool:
        """Whether parameters are fp16."""
        return self.settings.dtype == "fp16"

    def amp_enabled(self) -> bool:
        """Never: Apex is not supported."""
        return False

    def loss_scale(self) -> float:
        """What `backward` multiplies the loss by; 1 unless in fp16."""
        return 1.0 if self.zero_optimizer is None else self.zero_optimizer.loss_scale

    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale changes with overflows."""
        scaler = None if self.zero_optimizer is None else self.zero_optimizer.policy.scaler
        return scaler is not None and scaler.dynamic

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """The dtypes of parameters and of accumulated gradients."""
        return DTYPES[self.settings.dtype], DTYPES[self.settings.grad_accum_dtype]

    @property
    def optimizer(self) -> ShardedOptimizer | None:
        """What trains; as in DeepSpeed, at stage 3 without an optimizer the handles of its hooks instead."""
        return cast("ShardedOptimizer | None", self.zero_optimizer or self.parameter_offload)

    @property
    def basic_optimizer(self) -> ShardedOptimizer | None:
        """The optimizer; nothing is wrapped around it."""
        return self.zero_optimizer

    @property
    def client_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer that the script gave to initialize."""
        return None if self.zero_optimizer is None else self.zero_optimizer.plan.client

    @property
    def data_parallel_group(self) -> dist.ProcessGroup | None:
        """The group of all ranks."""
        return dist.group.WORLD if dist.is_initialized() else None

    def get_data_parallel_rank(self) -> int:
        """This rank's place among all."""
        return self.global_rank

    def deepspeed_io(
        self,
        dataset: Dataset[object],
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: object = None,
        collate_fn: Callable[[list[object]], object] | None = None,
        num_local_io_workers: int | None = None,
    ) -> TrainingDataLoader:
        """A dataloader of this rank's share of `dataset`, as `initialize(training_data=...)` makes one.

        `batch_size` defaults to the micro batch. A sampler of the script's is refused: it would not know of
        ranks; the other arguments have no effect.
        """
        if data_sampler is not None:
            raise EngineError(
                "deepspeed_io(data_sampler=...) is not supported", "make a DataLoader of your own"
            )
        size = self.batch_sizes.micro if batch_size is None else batch_size
        drop_last = self.settings.dataloader_drop_last
        return TrainingDataLoader(dataset, size, current_world(), collate_fn, drop_last)

    def get_batch_info(self) -> tuple[int, int, int]:
        """(train batch, micro batch, accumulation steps)."""
        return self.batch_sizes.train, self.batch_sizes.micro, self.batch_sizes.accumulation
