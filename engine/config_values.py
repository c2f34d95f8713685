"""The configuration as frozen values. Every default stands here or in `config_observe`, once. No torch.

A field made by `setting` is a key of the same name; its metadata is the key's answer (`config_keys`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dslaunch.engine.config_answers import setting
from dslaunch.engine.config_observe import (
    ActivationCheckpointingConfig,
    CommsLoggerConfig,
    CsvMonitorConfig,
    FlopsProfilerConfig,
    TensorboardConfig,
    ThroughputConfig,
    WandbConfig,
)

DtypeName = Literal["fp32", "bf16", "fp16"]
DEVICES = ("none", "cpu", "nvme")  # that state can be offloaded to


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The batch numbers as given; see `batch.resolve_batch`."""

    train_batch_size: int | None = setting(
        None, "samples of one optimizer step over all ranks", kind="int", auto=False
    )
    train_micro_batch_size_per_gpu: int | None = setting(
        None, "samples of one forward on one rank", kind="int", auto=False
    )
    gradient_accumulation_steps: int | None = setting(
        None, "forwards of one optimizer step", kind="int", auto=False
    )


@dataclass(frozen=True, slots=True)
class LeafModules:
    """`zero_optimization.leaf_module`: modules that stage 3 gathers with all their children at once."""

    classes: tuple[str, ...] = setting(
        ("MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"), "names of classes"
    )
    names: tuple[str, ...] = setting((), "names of modules in the model")
    name_suffixes: tuple[str, ...] = setting((), "ends of names of modules in the model")


@dataclass(frozen=True, slots=True)
class Stage3Config:
    """The `stage3_*` keys; sizes in elements."""

    prefetch_bucket_size: int = setting(50_000_000, "how far ahead parameters are gathered", low=0)
    param_persistence_threshold: int = setting(
        100_000, "parameters of at most so many elements stay gathered", low=0
    )
    model_persistence_threshold: int = setting(
        2**63 - 1, "how many elements may stay gathered in total", low=0
    )
    max_live_parameters: int = setting(1_000_000_000, "how many elements are gathered at most", low=0)
    gather_16bit_weights_on_model_save: bool = setting(
        False, "let `save_16bit_model` gather the whole model on rank 0"
    )


@dataclass(frozen=True, slots=True)
class OffloadOptimizerConfig:
    """`zero_optimization.offload_optimizer`: optimizer states on the host, which steps them."""

    device: str = setting("none", "cpu: keep and step optimizer states on the host", choices=DEVICES)
    pin_memory: bool = setting(True, "pin what GPUs copy from and to")
    ratio: float = setting(1.0, "the share of parameters that the host steps; the GPU steps the rest", low=0)

    @property
    def is_on(self) -> bool:
        """Whether the host steps anything."""
        return self.device == "cpu" and self.ratio > 0


@dataclass(frozen=True, slots=True)
class OffloadParamConfig:
    """`zero_optimization.offload_param`: the shards of parameters on the host."""

    device: str = setting("none", "cpu: keep the shards of parameters on the host", choices=DEVICES)
    pin_memory: bool = setting(True, "pin what GPUs copy from and to")

    @property
    def is_on(self) -> bool:
        """Whether shards live on the host."""
        return self.device == "cpu"


@dataclass(frozen=True, slots=True)
class ZeroConfig:
    """How optimizer state, gradients and parameters are sharded; sizes in elements."""

    stage: int = setting(
        0, "0: everything on every rank; 1: optimizer state sharded; 2: gradients too; 3: parameters too"
    )
    reduce_bucket_size: int = setting(500_000_000, "the largest bucket of one collective", low=1)
    overlap_comm: bool = setting(True, "average buckets while backward still runs (DeepSpeed: stage 3 only)")
    zero_hpz_partition_size: int = setting(
        1, "ranks of a node, which hold a second shard of the parameters for backward", low=1
    )
    zero_quantized_weights: bool = setting(False, "gather parameters as int8 blocks")
    stage3: Stage3Config = Stage3Config()
    leaf_module: LeafModules = LeafModules()
    offload_optimizer: OffloadOptimizerConfig = OffloadOptimizerConfig()
    offload_param: OffloadParamConfig = OffloadParamConfig()


@dataclass(frozen=True, slots=True)
class Fp16Config:
    """Half precision, and the loss scale that keeps its gradients from underflow."""

    enabled: bool = setting(False, "parameters, gradients and activations in fp16, masters in fp32")
    auto_cast: bool = setting(False, "cast floating inputs of the model to fp16")
    loss_scale: float = setting(0.0, "a constant loss scale; 0: a dynamic one", low=0)
    initial_scale_power: int = setting(16, "the dynamic scale starts at 2 to this power", low=0)
    loss_scale_window: int = setting(1000, "good steps until the scale doubles", low=1)
    hysteresis: int = setting(2, "overflows until the scale halves", low=1)
    consecutive_hysteresis: bool = setting(False, "a good step gives the hysteresis back")
    min_loss_scale: float = setting(1.0, "an overflow at this scale ends the run", low=0)


@dataclass(frozen=True, slots=True)
class AutocastConfig:
    """`torch_autocast`: the forward under torch.autocast, parameters in fp32."""

    enabled: bool = setting(False, "run the model's forward under torch.autocast")
    dtype: str | None = setting(
        None,
        "the dtype to compute in; default bf16; fp16 scales the loss as the section fp16 says",
        kind="text",
        choices=("bfloat16", "torch.bfloat16", "bf16", "float16", "torch.float16", "fp16", "half"),
    )

    @property
    def low_dtype(self) -> DtypeName:
        """What is computed in, where it is enabled."""
        return "fp16" if self.dtype in ("float16", "torch.float16", "fp16", "half") else "bf16"


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """`optimizer.type` and `optimizer.params`, as written; `config_optimizer.optimizer_spec` reads them."""

    type: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`scheduler.type` and `scheduler.params`, as written; `config_scheduler.scheduler_spec` reads them."""

    type: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """`checkpoint`: how `save_checkpoint` writes."""

    asynchronous: bool = False  # the key is `async`
    keep_last: int = setting(
        0,
        "how many checkpoints with the default tag are kept, the newest; 0: all",
        low=0,
    )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All of a ds_config that this engine acts on."""

    batch: BatchRequest = BatchRequest()
    zero: ZeroConfig = ZeroConfig()
    optimizer: OptimizerConfig | None = None
    scheduler: SchedulerConfig | None = None
    dtype: DtypeName = "fp32"
    grad_accum_dtype: DtypeName = "fp32"  # of the gradient buffers; follows dtype unless set
    check_grad_overflow: bool = True
    fp16: Fp16Config = Fp16Config()
    autocast: AutocastConfig = AutocastConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    gradient_clipping: float = setting(
        1.0, "the largest global L2 norm of the gradients; 0 switches clipping off", auto=False, low=0
    )
    steps_per_print: int | None = setting(None, "optimizer steps between two progress lines", kind="number")
    managed_gradient_accumulation: bool = setting(
        True, "count micro steps; false: every step() is an optimizer step, and losses are not divided"
    )
    gradient_allreduce_op: str = setting(
        "mean", "what the gradients of the ranks become: their mean, or their sum", choices=("mean", "sum")
    )
    zero_allow_untested_optimizer: bool = setting(
        False, "shard what a script's own optimizer steps, if a trial shows that it steps elements one by one"
    )
    dataloader_drop_last: bool = setting(False, "leave the last, smaller micro batch out")
    log_level: int = logging.INFO
    dump_state: bool = setting(False, "say the whole configuration at start")
    wall_clock_breakdown: bool = setting(
        False, "say the times of forward, backward and step every `steps_per_print` steps"
    )
    memory_breakdown: bool = setting(False, "say the device's memory after forward, backward and step")
    throughput: ThroughputConfig = field(default_factory=ThroughputConfig)
    comms_logger: CommsLoggerConfig = field(default_factory=CommsLoggerConfig)
    flops_profiler: FlopsProfilerConfig = field(default_factory=FlopsProfilerConfig)
    tensorboard: TensorboardConfig = field(default_factory=TensorboardConfig)
    csv_monitor: CsvMonitorConfig = field(default_factory=CsvMonitorConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    activation_checkpointing: ActivationCheckpointingConfig = field(
        default_factory=ActivationCheckpointingConfig
    )
    notes: tuple[str, ...] = ()  # keys accepted without effect, and why
    warnings: tuple[str, ...] = ()  # unknown keys, and what will surprise

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled: what is computed in fp16 has gradients that underflow."""
        return self.dtype == "fp16" or (self.autocast.enabled and self.autocast.low_dtype == "fp16")
