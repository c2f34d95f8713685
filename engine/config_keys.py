"""Every key DeepSpeed knows, and this engine's answer to each: honoured, without effect, or refused.

Rule of thumb: a key that only changes speed or reporting is accepted without effect and said so once; a key
that changes numbers, memory placement or files is refused unless it is switched off. Source: DeepSpeed's
"DeepSpeed Configuration JSON" page and its config models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "number", "flag", "text", "mapping"]


@dataclass(frozen=True, slots=True)
class Honoured:
    """Read into the config; `auto` says whether "auto" means the default."""

    kind: Kind
    auto: bool = False


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Accepted; one line says `why` it changes nothing, unless the engine does it anyway (`quiet`)."""

    why: str
    quiet: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """An error, unless the value is in `off`."""

    why: str
    off: tuple[object, ...] = (False, None)
    hint: str = "remove the key"


@dataclass(frozen=True, slots=True)
class Section:
    """An object with keys of its own."""

    keys: Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Feature:
    """An object switched by `enabled`: on gets `answer`. `keys` None: anything may stand in it."""

    answer: NoEffect | Refused
    keys: frozenset[str] | None = None


Answer = Honoured | NoEffect | Refused | Section | Feature


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STAGE3 = NoEffect("only ZeRO stage 3 reads it")
_MONITOR = "monitors are not written yet"
_LOSS_SCALE = NoEffect("bf16 needs no loss scale")
_REMOVED = Refused("DeepSpeed itself has removed it")
_NOT_YET = "it is not supported yet"
_OFFLOAD_KEYS = (
    "device nvme_path buffer_count buffer_size max_in_cpu pin_memory "
    "pipeline_read pipeline_write fast_init ratio"
)


def _idle_section(why: str, names: str) -> Section:
    """A section whose keys are all accepted without effect; off values pass silently."""
    return Section({name: NoEffect(why, quiet=(False, None)) for name in names.split()})


ZERO: Mapping[str, Answer] = {
    "stage": Honoured("int"),
    "reduce_bucket_size": Honoured("int", auto=True),
    "overlap_comm": Honoured("flag", auto=True),
    "contiguous_gradients": NoEffect("gradients always lie in contiguous buckets", quiet=(True,)),
    "reduce_scatter": NoEffect("stage 1 always reduce-scatters whole buckets", quiet=(True,)),
    "allgather_partitions": NoEffect("parameters are always gathered bucket by bucket", quiet=(True,)),
    "allgather_bucket_size": NoEffect(
        "parameters are gathered in the buckets of reduce_bucket_size", quiet=(5e8,)
    ),
    "allgather_size": NoEffect("parameters are gathered in the buckets of reduce_bucket_size", quiet=(5e8,)),
    "use_multi_rank_bucket_allreduce": NoEffect(
        "every bucket is evenly sharded over all ranks", quiet=(True,)
    ),
    "round_robin_gradients": NoEffect("every bucket is evenly sharded over all ranks", quiet=(False,)),
    "sub_group_size": NoEffect("the optimizer steps bucket by bucket", quiet=(1e9,)),
    "compute_grad_norm": NoEffect("the gradient norm is always computed", quiet=(True,)),
    "elastic_checkpoint": NoEffect("every checkpoint loads at any world size", quiet=(True,)),
    "parameter_alignment": NoEffect("parameters are always aligned", quiet=(False, True)),
    "enable_sanity_checks": NoEffect("the cheap checks are always on", quiet=(False,)),
    "memory_efficient_linear": _STAGE3,
    "override_module_apply": _STAGE3,
    "log_trace_cache_warnings": _STAGE3,
    "leaf_module": _STAGE3,
    "module_granularity_threshold": _STAGE3,
    "prefetch_bucket_size": _STAGE3,
    "param_persistence_threshold": _STAGE3,
    "model_persistence_threshold": _STAGE3,
    "max_live_parameters": _STAGE3,
    "max_reuse_distance": _STAGE3,
    "gather_16bit_weights_on_model_save": _STAGE3,
    "stage3_prefetch_bucket_size": _STAGE3,
    "stage3_param_persistence_threshold": _STAGE3,
    "stage3_model_persistence_threshold": _STAGE3,
    "stage3_max_live_parameters": _STAGE3,
    "stage3_max_reuse_distance": _STAGE3,
    "stage3_gather_16bit_weights_on_model_save": _STAGE3,
    "stage3_gather_fp16_weights_on_model_save": _STAGE3,
    "stage3_module_granularity_threshold": _STAGE3,
    "stage3_use_all_reduce_for_fetch_params": _STAGE3,
    "stage3_allgather_sequential": _STAGE3,
    "load_from_fp32_weights": Refused("optimizer masters are always loaded in fp32", off=(True,)),
    "ignore_unused_parameters": Refused("an error on unused parameters is not supported", off=(True,)),
    "legacy_stage1": Refused("DeepSpeed itself has removed it"),
    "offload_optimizer": Feature(
        Refused("offload is not supported yet"),
        _names(_OFFLOAD_KEYS + " super_offload cpuadam_cores_perc"),
    ),
    "offload_param": Feature(Refused("offload is not supported yet"), _names(_OFFLOAD_KEYS)),
    "cpu_offload": Refused("offload is not supported yet"),
    "cpu_offload_param": Refused("offload is not supported yet"),
    "cpu_offload_use_pin_memory": NoEffect("offload is off", quiet=(False, True)),
    "pipeline_loading_checkpoint": NoEffect("there is no pipeline engine", quiet=(False,)),
    "save_muon_momentum_buffer_in_memory": Refused("Muon is not supported yet"),
    "zero_hpz_partition_size": Refused("ZeRO++ is not supported", off=(1,)),
    "zero_quantized_weights": Refused("ZeRO++ is not supported"),
    "zero_quantized_nontrainable_weights": Refused("ZeRO++ is not supported"),
    "zero_quantized_gradients": Refused("ZeRO++ is not supported"),
    "zenflow": Refused("ZenFlow is not supported"),
    "mics_shard_size": Refused("DeepSpeed itself has removed it", off=(-1, None)),
    "mics_hierarchical_params_gather": _REMOVED,
    "zeropp_loco_param": _REMOVED,
}

FP16_KEYS = _names(
    "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis "
    "min_loss_scale fp16_master_weights_and_grads fp16_opt_level opt_level"
)

BF16: Mapping[str, Answer] = {
    "enabled": Honoured("flag"),
    "check_grad_overflow": Honoured("flag", auto=True),
    "immediate_grad_update": NoEffect("gradients are always accumulated at once", quiet=(False, True)),
    "bf16_master_weights_and_grads": Refused("masters are always kept in fp32"),
    "bf16_optimizer_states": Refused("moments are always kept in fp32"),
    **dict.fromkeys(
        sorted(FP16_KEYS - {"enabled", "auto_cast", "fp16_master_weights_and_grads"}), _LOSS_SCALE
    ),
    "auto_cast": Refused("inputs are not cast; cast them in the script"),
}

TOP: Mapping[str, Answer] = {
    "train_batch_size": Honoured("int"),
    "train_micro_batch_size_per_gpu": Honoured("int"),
    "gradient_accumulation_steps": Honoured("int"),
    "gradient_clipping": Honoured("number"),
    "steps_per_print": Honoured("number", auto=True),
    "dataloader_drop_last": Honoured("flag"),
    "log_level": Honoured("text"),
    "communication_data_type": Honoured("text", auto=True),
    "optimizer": Section(
        {
            "type": Honoured("text"),
            "params": Honoured("mapping"),
            "legacy_fusion": NoEffect("it is unused", (False,)),
        }
    ),
    "scheduler": Section({"type": Honoured("text"), "params": Honoured("mapping")}),
    "zero_optimization": Section(ZERO),
    "bf16": Section(BF16),
    "bfloat16": Section(BF16),
    "fp16": Feature(Refused("fp16 is not supported yet", hint="use bf16"), FP16_KEYS),
    "data_types": Section(
        {
            "grad_accum_dtype": Honoured("text"),
            "param_dtype": Refused("the dtype of parameters follows bf16.enabled", off=(None,)),
            "buffer_dtype": Refused("buffers keep their dtype", off=(None,)),
            "keep_in_fp32_modules": Refused("all parameters take one dtype", off=(None, "auto")),
        }
    ),
    "checkpoint": Section(
        {
            "tag_validation": NoEffect(
                "ranks must always agree on the tag", quiet=("Warn", "warn", "WARN", "Fail")
            ),
            "load_universal": Refused(
                "every checkpoint here loads at any world size; DeepSpeed's are not read"
            ),
            "use_node_local_storage": Refused("checkpoints need a directory that every node sees"),
            "parallel_write": _idle_section("every rank always writes its own shard", "pipeline_stage"),
            "checkpoint_serialization": NoEffect("tensors are always written as safetensors", quiet=(True,)),
            "writer": Refused(_NOT_YET),
        }
    ),
    "prescale_gradients": NoEffect("the mean over ranks is the same either way", quiet=(False,)),
    "gradient_predivide_factor": Refused("gradients are averaged exactly", off=(1, None)),
    "gradient_allreduce_op": Refused("gradients are averaged over ranks", off=("mean", None)),
    "fp32_allreduce": Refused(_NOT_YET),
    "seq_parallel_communication_data_type": NoEffect(
        "there is no sequence parallelism", quiet=("fp32", None)
    ),
    "disable_allgather": Refused("parameters are always gathered after the step"),
    "managed_gradient_accumulation": Refused("the engine always counts micro steps", off=(True,)),
    "zero_allow_untested_optimizer": NoEffect(
        "the optimizer is always the engine's own", quiet=(False, True)
    ),
    "zero_force_ds_cpu_optimizer": NoEffect("the optimizer is always the engine's own", quiet=(False, True)),
    "disable_python_gc": NoEffect("it is left to the script", quiet=(False,)),
    "dump_state": NoEffect("the engine's one line says what matters", quiet=(False,)),
    "wall_clock_breakdown": NoEffect("timers are not written yet", quiet=(False,)),
    "memory_breakdown": NoEffect("timers are not written yet", quiet=(False,)),
    "timers": Section({"throughput": _idle_section("timers are not written yet", "enabled synchronized")}),
    "comms_logger": Feature(
        NoEffect("collectives are not logged yet"), _names("enabled prof_all prof_ops verbose debug")
    ),
    "flops_profiler": Feature(
        NoEffect("the profiler is not written yet"),
        _names("enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file"),
    ),
    "tensorboard": Feature(NoEffect(_MONITOR), _names("enabled output_path job_name")),
    "csv_monitor": Feature(NoEffect(_MONITOR), _names("enabled output_path job_name")),
    "wandb": Feature(NoEffect(_MONITOR), _names("enabled group team project")),
    "comet": Feature(
        NoEffect(_MONITOR),
        _names(
            "enabled samples_log_interval project workspace api_key "
            "experiment_name experiment_key online mode"
        ),
    ),
    "monitor_config": NoEffect(_MONITOR),
    "activation_checkpointing": _idle_section(
        "deepspeed.checkpointing is not written yet; torch.utils.checkpoint works",
        "partition_activations cpu_checkpointing contiguous_memory_optimization number_checkpoints "
        "synchronize_checkpoint_boundary profile",
    ),
    "aio": _idle_section(
        "nothing is swapped to NVMe",
        "block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds",
    ),
    "use_data_before_expert_parallelism": NoEffect("there is no expert parallelism", quiet=(False,)),
    "use_data_before_expert_parallel_": NoEffect("there is no expert parallelism", quiet=(False,)),
    "pipeline": _idle_section(
        "there is no pipeline engine",
        "stages partition seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned",
    ),
    "sequence_parallel_size": Refused("sequence parallelism is not supported", off=(1, None)),
    "data_parallel_size": Refused("all ranks are data-parallel", off=(None,)),
    "tensor_parallel": Refused(
        "tensor parallelism is not supported", off=({}, {"autotp_size": 0}, {"autotp_size": 1})
    ),
    "expert_parallel": Feature(Refused("expert parallelism is not supported")),
    "torch_autocast": Feature(
        Refused("it is not supported yet", hint="use torch.autocast in the script"),
        _names("enabled dtype lower_precision_safe_modules"),
    ),
    "hybrid_engine": Feature(Refused("it is not supported")),
    "compile": Feature(Refused("it is not supported", hint="call torch.compile in the script")),
    "data_efficiency": Feature(Refused("it is not supported")),
    "amp": Feature(Refused("DeepSpeed itself has removed it", hint="use bf16")),
    "nebula": Feature(_REMOVED),
    "compression_training": Feature(_REMOVED),
    "quantize_training": Feature(_REMOVED),
    "sparse_gradients": _REMOVED,
    "eigenvalue": Feature(_REMOVED),
    "sparse_attention": Feature(_REMOVED),
    "elasticity": Feature(_REMOVED),
    "graph_harvesting": _REMOVED,
    "curriculum_learning": Feature(_REMOVED),
    "progressive_layer_drop": Feature(_REMOVED),
    "vocabulary_size": NoEffect("nothing reads it"),
    "autotuning": Feature(Refused("it is not supported")),
}
