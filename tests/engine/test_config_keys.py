"""Every key of DeepSpeed has an answer, and every other key is noticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.engine.config import load_config, parse_config, survey
from dslaunch.engine.config_answers import Answer, Feature, Honoured, NoEffect, Refused, Renamed, Section
from dslaunch.engine.config_keys import TOP
from dslaunch.engine.config_unknown import paths, similar_key
from dslaunch.engine.errors import ConfigError


def _answers(keys: Mapping[str, Answer], prefix: str = "") -> Iterator[tuple[str, Answer]]:
    for key, answer in keys.items():
        yield prefix + key, answer
        if isinstance(answer, Section):
            yield from _answers(answer.keys, f"{prefix}{key}.")


# Section 2.3 of what DeepSpeed 0.19.8 reads, by path.
KNOWN = [
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "steps_per_print",
    "gradient_clipping",
    "prescale_gradients",
    "gradient_predivide_factor",
    "gradient_allreduce_op",
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "disable_allgather",
    "dump_state",
    "disable_python_gc",
    "wall_clock_breakdown",
    "memory_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "dataloader_drop_last",
    "managed_gradient_accumulation",
    "log_level",
    "data_types.grad_accum_dtype",
    "data_types.param_dtype",
    "data_types.buffer_dtype",
    "data_types.keep_in_fp32_modules",
    "torch_autocast",
    "timers.throughput.enabled",
    "timers.throughput.synchronized",
    "sequence_parallel_size",
    "data_parallel_size",
    "use_data_before_expert_parallelism",
    "expert_parallel",
    "hybrid_engine",
    "compile",
    "tensor_parallel",
    "data_efficiency",
    "pipeline.stages",
    "pipeline.partition",
    "pipeline.seed_layers",
    "comms_logger",
    "aio.block_size",
    "aio.queue_depth",
    "aio.single_submit",
    "aio.use_gds",
    "bf16.enabled",
    "bf16.immediate_grad_update",
    "bf16.check_grad_overflow",
    "bf16.bf16_master_weights_and_grads",
    "bf16.bf16_optimizer_states",
    "bf16.loss_scale",
    "fp16",
    "zero_optimization.stage",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_scatter",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.use_multi_rank_bucket_allreduce",
    "zero_optimization.allgather_partitions",
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.overlap_comm",
    "zero_optimization.compute_grad_norm",
    "zero_optimization.load_from_fp32_weights",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.sub_group_size",
    "zero_optimization.ignore_unused_parameters",
    "zero_optimization.legacy_stage1",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.parameter_alignment",
    "zero_optimization.memory_efficient_linear",
    "zero_optimization.override_module_apply",
    "zero_optimization.pipeline_loading_checkpoint",
    "zero_optimization.log_trace_cache_warnings",
    "zero_optimization.enable_sanity_checks",
    "zero_optimization.save_muon_momentum_buffer_in_memory",
    "zero_optimization.zero_hpz_partition_size",
    "zero_optimization.zero_quantized_weights",
    "zero_optimization.zero_quantized_nontrainable_weights",
    "zero_optimization.zero_quantized_gradients",
    "zero_optimization.zenflow",
    "zero_optimization.leaf_module",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_model_persistence_threshold",
    "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.stage3_max_reuse_distance",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_module_granularity_threshold",
    "zero_optimization.stage3_use_all_reduce_for_fetch_params",
    "zero_optimization.stage3_allgather_sequential",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
    "zero_optimization.cpu_offload",
    "zero_optimization.cpu_offload_param",
    "zero_optimization.cpu_offload_use_pin_memory",
    "activation_checkpointing.partition_activations",
    "activation_checkpointing.cpu_checkpointing",
    "flops_profiler",
    "checkpoint.tag_validation",
    "checkpoint.load_universal",
    "checkpoint.use_node_local_storage",
    "checkpoint.parallel_write.pipeline_stage",
    "checkpoint.checkpoint_serialization",
    "checkpoint.writer",
    "tensorboard",
    "csv_monitor",
    "wandb",
    "comet",
    "nebula",
    "compression_training",
    "amp",
    "quantize_training",
    "sparse_gradients",
    "eigenvalue",
    "sparse_attention",
    "elasticity",
    "graph_harvesting",
    "curriculum_learning",
    "progressive_layer_drop",
    "optimizer.type",
    "optimizer.params",
    "scheduler.type",
    "scheduler.params",
]


@pytest.mark.parametrize("path", KNOWN)
def test_every_key_of_deepspeed_has_an_answer(path: str) -> None:
    assert path in dict(_answers(TOP))


def test_every_answer_says_why() -> None:
    for path, answer in _answers(TOP):
        inner = answer.answer if isinstance(answer, Feature) else answer
        match inner:
            case NoEffect(why) | Refused(why):
                assert why, path
            case Honoured():
                assert inner.means, path
            case Section() | Renamed():
                pass


FOREIGN: dict[str, object] = {
    "zero_optimization.reduce_bucket_size": 5,  # TRL's reference models
    "hf_trainer_says": {"anything": True},
    "_comment": "mine",
    "zero_optimization": {"stage": 1, "zeppelin": 3},
}


def test_unknown_keys_that_look_like_nothing_are_one_warning() -> None:
    assert parse_config(FOREIGN).warnings == (
        "unknown keys, ignored: zero_optimization.reduce_bucket_size, hf_trainer_says, _comment, "
        "zero_optimization.zeppelin (DSLAUNCH_STRICT_CONFIG=1 makes them errors)",
    )


def test_and_an_error_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSLAUNCH_STRICT_CONFIG", "1")
    with pytest.raises(ConfigError) as caught:
        load_config(FOREIGN)
    assert (caught.value.what, caught.value.hint) == (
        "unknown keys: zero_optimization.reduce_bucket_size, hf_trainer_says, _comment, "
        "zero_optimization.zeppelin",
        "remove them, or unset DSLAUNCH_STRICT_CONFIG",
    )
    monkeypatch.setenv("DSLAUNCH_STRICT_CONFIG", "0")
    assert load_config(FOREIGN).zero.stage == 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=8) | st.just("auto"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=6,
)


@given(st.data())
def test_whatever_is_written_is_read_or_refused(data: st.DataObject) -> None:
    """No value of any key ends in anything but a config or a ConfigError that names something."""
    raw: dict[str, object] = {}
    for path in data.draw(st.lists(st.sampled_from(list(paths(TOP))), max_size=4)):
        section = raw
        *outer, key = path.split(".")
        for name in outer:
            section = cast("dict[str, object]", section.setdefault(name, {}))
            if not isinstance(section, dict):
                return
        section[key] = data.draw(JSON_VALUES)
    for error in survey(raw).errors:
        assert error.what
        assert error.hint


SIBLINGS: dict[str, set[str]] = {}
for known_path in paths(TOP):
    SIBLINGS.setdefault(known_path.rpartition(".")[0], set()).add(known_path.rpartition(".")[2])


@given(st.sampled_from([path for path in paths(TOP) if len(path.rpartition(".")[2]) > 6]), st.data())
def test_one_letter_missing_is_noticed(path: str, data: st.DataObject) -> None:
    section, _, key = path.rpartition(".")
    cut = data.draw(st.integers(0, len(key) - 1))
    wrong = key[:cut] + key[cut + 1 :]
    known = SIBLINGS[section]
    if wrong not in known:
        assert similar_key(wrong, known) is not None
