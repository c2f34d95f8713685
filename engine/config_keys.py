"""Every key DeepSpeed knows, and this engine's answer to each: honoured, without effect, or refused.

Rule of thumb: a key that only changes speed or reporting is accepted without effect and said so once; a key
that changes numbers, memory placement or files is refused unless it is switched off. Keys that DeepSpeed
itself has removed are accepted without effect: old files are full of them. Source: DeepSpeed's "DeepSpeed
Configuration JSON" page and its config models. `docs/engine.md` holds this table for readers.
"""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.engine.config_answers import (
    Answer,
    Feature,
    Honoured,
    NoEffect,
    Refused,
    Renamed,
    Section,
    settings_of,
)
from dslaunch.engine.config_observe import (
    ActivationCheckpointingConfig,
    CommsLoggerConfig,
    CsvMonitorConfig,
    FlopsProfilerConfig,
    TensorboardConfig,
    ThroughputConfig,
    WandbConfig,
)
from dslaunch.engine.config_values import (
    AutocastConfig,
    BatchRequest,
    CheckpointConfig,
    EngineConfig,
    Fp16Config,
    LeafModules,
    OffloadOptimizerConfig,
    OffloadParamConfig,
    Stage3Config,
    ZeroConfig,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _idle(why: str, names: str) -> dict[str, Answer]:
    """Keys that are all accepted without effect; off values pass silently."""
    return {name: NoEffect(why, quiet=(False, None)) for name in names.split()}


_LOSS_SCALE = NoEffect("bf16 needs no loss scale: these are keys of fp16", warn=True)
_FP32_MASTERS = NoEffect(
    "masters are kept in fp32, which takes 2 bytes a parameter more", quiet=(False, None), warn=True
)
_REMOVED = NoEffect("DeepSpeed itself has removed it", quiet=(False, None))
_REMOVED_FEATURE = Feature(NoEffect("DeepSpeed itself has removed it", warn=True))
_NOT_YET = "it is not supported yet"
_NVME_ONLY = "only NVMe offload reads it"
_OFFLOAD = {
    "nvme_path": NoEffect(_NVME_ONLY, quiet=(None,)),
    **{
        name: NoEffect(_NVME_ONLY, quiet=tuple(quiet))
        for name, quiet in (("buffer_count", (4, 5)), ("buffer_size", (1e8,)), ("max_in_cpu", (1e9,)))
    },
    **_idle(_NVME_ONLY, "pipeline_read pipeline_write fast_init"),
}
_BUCKETS = "parameters are gathered in the buckets of reduce_bucket_size"
_EVENLY = "every bucket is evenly sharded over all ranks"

ZERO: Mapping[str, Answer] = {
    **settings_of(ZeroConfig),
    **settings_of(Stage3Config, "stage3_"),
    "leaf_module": Section(settings_of(LeafModules)),
    "ignore_unused_parameters": NoEffect(
        "a parameter without a gradient is stepped with a gradient of zero", quiet=(True, None), warn=True
    ),
    "stage3_max_reuse_distance": NoEffect(
        "units are gathered ahead, up to stage3_max_live_parameters, and released after use", quiet=(1e9,)
    ),
    "stage3_module_granularity_threshold": NoEffect("units are found by size and ModuleList", quiet=(0,)),
    "stage3_use_all_reduce_for_fetch_params": NoEffect("parameters are always all-gathered", quiet=(False,)),
    "stage3_allgather_sequential": NoEffect("a unit is always gathered in one call", quiet=(False,)),
    "contiguous_gradients": NoEffect("gradients always lie in contiguous buckets", quiet=(True,)),
    "reduce_scatter": NoEffect("sharded stages always reduce-scatter whole buckets", quiet=(True,)),
    "allgather_partitions": NoEffect("parameters are always gathered bucket by bucket", quiet=(True,)),
    "allgather_bucket_size": NoEffect(_BUCKETS, quiet=(5e8,)),
    "allgather_size": NoEffect(_BUCKETS, quiet=(5e8,)),
    "use_multi_rank_bucket_allreduce": NoEffect(_EVENLY, quiet=(True,)),
    "round_robin_gradients": NoEffect(_EVENLY, quiet=(False,)),
    "sub_group_size": NoEffect("the optimizer steps bucket by bucket", quiet=(1e9,)),
    "compute_grad_norm": NoEffect("the gradient norm is always computed", quiet=(True,)),
    "elastic_checkpoint": NoEffect("every checkpoint loads at any world size", quiet=(False, True)),
    "parameter_alignment": NoEffect("parameters are always aligned", quiet=(False, True)),
    "enable_sanity_checks": NoEffect("the cheap checks are always on", quiet=(False,)),
    "memory_efficient_linear": NoEffect("torch's linear is used as it is", quiet=(True, False)),
    "override_module_apply": NoEffect("`zero.Init` decides", quiet=(True,)),
    "log_trace_cache_warnings": NoEffect("a change of the order of use is always said", quiet=(False, True)),
    "pipeline_loading_checkpoint": NoEffect("there is no pipeline engine", quiet=(False,)),
    "cpu_offload_use_pin_memory": NoEffect("offload_optimizer.pin_memory decides", quiet=(False, True)),
    "save_muon_momentum_buffer_in_memory": NoEffect("momentum is never gathered", quiet=(False,)),
    "load_from_fp32_weights": Refused("optimizer masters are always loaded in fp32", off=(True,)),
    "legacy_stage1": Refused("DeepSpeed itself has removed it"),
    "offload_optimizer": Section(
        {
            **settings_of(OffloadOptimizerConfig),
            **_OFFLOAD,
            "super_offload": NoEffect("the host always steps while gradients arrive", quiet=(False,)),
            "cpuadam_cores_perc": NoEffect(
                "the host steps with this rank's share of the cores", quiet=(0.8,)
            ),
        }
    ),
    "offload_param": Section({**settings_of(OffloadParamConfig), **_OFFLOAD}),
    "cpu_offload": Renamed("zero_optimization.offload_optimizer"),
    "cpu_offload_param": Renamed("zero_optimization.offload_param"),
    "stage3_gather_fp16_weights_on_model_save": Renamed(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    ),
    **{
        name: Renamed(f"zero_optimization.stage3_{name}")
        for name in (*settings_of(Stage3Config), "max_reuse_distance", "module_granularity_threshold")
    },
    "zero_quantized_nontrainable_weights": Refused("shards of frozen parameters are kept exact"),
    "zero_quantized_gradients": Refused("gradients travel unrounded; zero_quantized_weights is supported"),
    "zenflow": Refused("ZenFlow is not supported"),
    "mics_shard_size": NoEffect("DeepSpeed itself has removed it", quiet=(-1, None)),
    "mics_hierarchical_params_gather": _REMOVED,
    "zeropp_loco_param": _REMOVED,
}

FP16: Mapping[str, Answer] = {
    **settings_of(Fp16Config),
    "fp16_master_weights_and_grads": _FP32_MASTERS,
    **_idle("it is Apex's, which DeepSpeed has removed", "fp16_opt_level opt_level"),
}

BF16: Mapping[str, Answer] = {
    "enabled": Honoured(
        "flag", "parameters, gradients and activations in bf16, masters in fp32", False, True
    ),
    "check_grad_overflow": Honoured("flag", "leave out steps whose gradient norm is inf or nan", True, True),
    "immediate_grad_update": NoEffect("gradients are always accumulated at once", quiet=(False, True)),
    "bf16_master_weights_and_grads": _FP32_MASTERS,
    "bf16_optimizer_states": Honoured(
        "flag", "keep the moments of Adam in bf16, as `optimizer.params.moment_dtype` says", False, True
    ),
    **dict.fromkeys(
        sorted(set(FP16) - {"enabled", "auto_cast", "fp16_master_weights_and_grads"}), _LOSS_SCALE
    ),
    "auto_cast": Refused("inputs are not cast; cast them in the script"),
    "fp16_master_weights_and_grads": _FP32_MASTERS,
}

TOP: Mapping[str, Answer] = {
    **settings_of(BatchRequest),
    **settings_of(EngineConfig),
    "log_level": Honoured("text", "debug, info, warning, error or critical", "info"),
    "optimizer": Section(
        {
            "type": Honoured("text", "Adam, AdamW, Adagrad, Lion, LAMB, SGD, Muon or a name of torch.optim"),
            "params": Honoured("mapping", "its hyperparameters"),
            "legacy_fusion": NoEffect("it is unused", (False,)),
        }
    ),
    "scheduler": Section(
        {
            "type": Honoured("text", "one of DeepSpeed's five, or a name of torch.optim.lr_scheduler"),
            "params": Honoured("mapping", "its parameters"),
        }
    ),
    "zero_optimization": Section(ZERO),
    "bf16": Section(BF16),
    "bfloat16": Renamed("bf16"),
    "fp16": Section(FP16),
    "torch_autocast": Section(
        {
            **settings_of(AutocastConfig),
            "lower_precision_safe_modules": NoEffect("gradients travel in their accumulation dtype"),
        }
    ),
    "data_types": Section(
        {
            "grad_accum_dtype": Honoured(
                "text", "fp32, bf16 or fp16: of the gradient buffers; default: as the parameters", None, True
            ),
            "param_dtype": Refused("the dtype of parameters follows bf16.enabled", off=(None,)),
            "buffer_dtype": Refused("buffers keep their dtype", off=(None,)),
            "keep_in_fp32_modules": Refused("all parameters take one dtype", off=(None, "auto")),
        }
    ),
    "communication_data_type": Honoured(
        "text",
        "fp32 (or as the parameters): what gradients travel in, and are accumulated in",
        None,
        auto=True,
    ),
    "timers": Section({"throughput": Section(settings_of(ThroughputConfig))}),
    "comms_logger": Section(settings_of(CommsLoggerConfig)),
    "flops_profiler": Section(settings_of(FlopsProfilerConfig)),
    "tensorboard": Section(settings_of(TensorboardConfig)),
    "csv_monitor": Section(settings_of(CsvMonitorConfig)),
    "wandb": Section(settings_of(WandbConfig)),
    "comet": Feature(
        NoEffect("there is no Comet monitor; use tensorboard, csv_monitor or wandb"),
        _names(
            "enabled samples_log_interval project workspace api_key "
            "experiment_name experiment_key online mode"
        ),
    ),
    "activation_checkpointing": Section(
        {
            **settings_of(ActivationCheckpointingConfig),
            **_idle("there is no model parallelism to share activations among", "partition_activations"),
            **_idle("inputs are kept where autograd made them", "contiguous_memory_optimization"),
            **_idle("only contiguous_memory_optimization would read it", "number_checkpoints"),
            **_idle("streams are ordered by events", "synchronize_checkpoint_boundary"),
        }
    ),
    "checkpoint": Section(
        {
            "tag_validation": Honoured(
                "text",
                "Warn, Ignore or Fail: ranks that save under different tags are an error with all of them",
                "Warn",
                choices=("warn", "ignore", "fail"),
            ),
            "async": Honoured(
                "flag", "copy and write the state in the background while training goes on", False, True
            ),
            **settings_of(CheckpointConfig),
            "load_universal": Refused(
                "universal checkpoints are not read; all others load at any world size as they are"
            ),
            "use_node_local_storage": NoEffect(
                "directories that nodes do not share are recognised", quiet=(False, True)
            ),
            "parallel_write": Section(_idle("every rank always writes its own shard", "pipeline_stage")),
            "checkpoint_serialization": NoEffect("tensors are always written as safetensors", quiet=(True,)),
            "writer": Refused(
                "files are always written by the engine's own writer", hint='write "async": true'
            ),
        }
    ),
    "prescale_gradients": NoEffect("the mean over ranks is the same either way", quiet=(False,)),
    "gradient_predivide_factor": NoEffect("the mean over ranks is the same either way", quiet=(1, None)),
    "fp32_allreduce": Refused(_NOT_YET, hint='write "data_types": {"grad_accum_dtype": "fp32"}'),
    "seq_parallel_communication_data_type": NoEffect(
        "there is no sequence parallelism", quiet=("fp32", None)
    ),
    "disable_allgather": Refused("parameters are always gathered after the step"),
    "zero_force_ds_cpu_optimizer": NoEffect("the optimizer is always the engine's own", quiet=(False, True)),
    "disable_python_gc": NoEffect("it is left to the script", quiet=(False,)),
    "monitor_config": NoEffect("write tensorboard, csv_monitor or wandb", quiet=(None,)),
    "aio": Section(
        _idle(
            "nothing is swapped to NVMe",
            "block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds",
        )
    ),
    "use_data_before_expert_parallelism": NoEffect("there is no expert parallelism", quiet=(False,)),
    "use_data_before_expert_parallel_": NoEffect("there is no expert parallelism", quiet=(False,)),
    "pipeline": Section(
        _idle(
            "there is no pipeline engine",
            "stages partition seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned",
        )
    ),
    "sequence_parallel_size": Refused("sequence parallelism is not supported", off=(1, None)),
    "data_parallel_size": Refused("all ranks are data-parallel", off=(None,)),
    "tensor_parallel": Refused(
        "tensor parallelism is not supported", off=({}, {"autotp_size": 0}, {"autotp_size": 1})
    ),
    "expert_parallel": Feature(Refused("expert parallelism is not supported")),
    "hybrid_engine": Feature(Refused("it is not supported")),
    "compile": Feature(Refused("it is not supported", hint="call torch.compile in the script")),
    "data_efficiency": Feature(Refused("it is not supported")),
    "autotuning": Feature(Refused("it is not supported")),
    "vocabulary_size": NoEffect("nothing reads it"),
    "amp": Feature(NoEffect("DeepSpeed itself has removed it; write bf16 for low precision", warn=True)),
    "sparse_gradients": NoEffect("DeepSpeed itself has removed it; gradients are dense", quiet=(False, None)),
    "graph_harvesting": _REMOVED,
    **dict.fromkeys(
        (
            "nebula",
            "compression_training",
            "quantize_training",
            "eigenvalue",
            "sparse_attention",
            "elasticity",
            "curriculum_learning",
            "progressive_layer_drop",
        ),
        _REMOVED_FEATURE,
    ),
}
