"""DeepSpeed's remaining getters: what the configuration says, by the names scripts know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dslaunch.engine.config_values import EngineConfig

_Getter = Callable[[Any], Any]


def _says(read: Callable[[EngineConfig], object]) -> _Getter:
    return lambda engine: read(engine.settings)


def _always(value: object) -> _Getter:
    return lambda _: value


class EngineSettings:
    """Mixed into `Engine`."""

    settings: EngineConfig
    config: Mapping[str, Any]  # as given

    optimizer_name = _says(lambda c: c.optimizer and c.optimizer.type)
    optimizer_params = _says(lambda c: c.optimizer and dict(c.optimizer.params))
    optimizer_legacy_fusion = _always(False)
    scheduler_name = _says(lambda c: c.scheduler and c.scheduler.type)
    scheduler_params = _says(lambda c: c.scheduler and dict(c.scheduler.params))

    memory_breakdown = _says(lambda c: c.memory_breakdown)
    dump_state = _says(lambda c: c.dump_state)
    dataloader_drop_last = _says(lambda c: c.dataloader_drop_last)
    log_level = _says(lambda c: c.log_level)
    flops_profiler_enabled = _says(lambda c: c.flops_profiler.enabled)
    flops_profiler_recompute_fwd_factor = _says(lambda c: c.flops_profiler.recompute_fwd_factor)
    flops_profiler_profile_step = _says(lambda c: c.flops_profiler.profile_step)
    flops_profiler_module_depth = _says(lambda c: c.flops_profiler.module_depth)
    flops_profiler_top_modules = _says(lambda c: c.flops_profiler.top_modules)
    flops_profiler_detailed = _says(lambda c: c.flops_profiler.detailed)
    flops_profiler_output_file = _says(lambda c: c.flops_profiler.output_file)

    torch_autocast_enabled = _says(lambda c: c.autocast.enabled)
    fp16_auto_cast = _says(lambda c: c.fp16.auto_cast)
    initial_dynamic_scale = _says(lambda c: 2.0**c.fp16.initial_scale_power)
    fp16_master_weights_and_gradients = _always(False)
    bf16_master_weights_and_grads = _always(False)
    bf16_optimizer_states = _says(
        lambda c: c.optimizer is not None and c.optimizer.params.get("moment_dtype") == "bf16"
    )
    managed_gradient_accumulation = _says(lambda c: c.managed_gradient_accumulation)
    postscale_gradients = _always(True)
    gradient_predivide_factor = _always(1.0)

    zero_reduce_bucket_size = _says(lambda c: c.zero.reduce_bucket_size)
    zero_allgather_bucket_size = _says(lambda c: c.zero.reduce_bucket_size)
    zero_overlap_comm = _says(lambda c: c.zero.overlap_comm)
    zero_reduce_scatter = _always(True)
    zero_contiguous_gradients = _always(True)
    zero_allgather_partitions = _always(True)
    zero_round_robin_gradients = _always(False)
    zero_load_from_fp32_weights = _always(True)
    zero_elastic_checkpoint = _always(True)
    zero_ignore_unused_parameters = _always(True)
    zero_prefetch_bucket_size = _says(lambda c: c.zero.stage3.prefetch_bucket_size)
    zero_param_persistence_threshold = _says(lambda c: c.zero.stage3.param_persistence_threshold)
    zero_model_persistence_threshold = _says(lambda c: c.zero.stage3.model_persistence_threshold)
    zero_max_live_parameters = _says(lambda c: c.zero.stage3.max_live_parameters)

    load_universal_checkpoint = _always(False)
    use_node_local_storage = _always(False)
    autotuning_enabled = _always(False)
    autotp_size = _always(0)
    curriculum_learning_enabled = _always(False)
    random_ltd_enabled = _always(False)
    data_efficiency_enabled = _always(False)
    get_sequence_parallel_group = _always(None)
    get_tensor_parallel_rank = get_model_parallel_rank = _always(0)
