"""What a ds_config.json may say, and the exact words of every refusal."""

from __future__ import annotations

import argparse
import base64
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.engine.config import EngineConfig, OptimizerConfig, load_config, parse_config, survey
from dslaunch.engine.config_answers import Answer, Feature, Honoured, NoEffect, Refused, Renamed, Section
from dslaunch.engine.config_keys import TOP
from dslaunch.engine.config_observe import CommsLoggerConfig, CsvMonitorConfig, FlopsProfilerConfig
from dslaunch.engine.config_source import choose_source, load_source, parse_text
from dslaunch.engine.config_unknown import paths, similar_key
from dslaunch.engine.errors import ConfigError
from dslaunch.engine.initialize import add_config_arguments


def refusal(raw: Mapping[str, object]) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert str(caught.value) == f"{caught.value.what}\nhint: {caught.value.hint}"
    return caught.value.what, caught.value.hint


def test_defaults() -> None:
    assert parse_config({}) == EngineConfig()
    default = EngineConfig()
    assert default.gradient_clipping == 1.0
    assert (default.zero.stage, default.zero.reduce_bucket_size) == (0, 500_000_000)
    assert default.dtype == default.grad_accum_dtype == "fp32"
    assert default.steps_per_print is None


def test_everything_honoured() -> None:
    config = parse_config(
        {
            "train_batch_size": 32,
            "train_micro_batch_size_per_gpu": 4.0,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0,
            "steps_per_print": 10,
            "dataloader_drop_last": True,
            "log_level": "WARNING",
            "bf16": {"enabled": True, "check_grad_overflow": False},
            "data_types": {"grad_accum_dtype": "fp32"},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "scheduler": {"type": "WarmupLR"},
            "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e7, "overlap_comm": False},
        }
    )
    assert config.batch.train_micro_batch_size_per_gpu == 4
    assert isinstance(config.batch.train_micro_batch_size_per_gpu, int)
    assert (config.zero.stage, config.zero.reduce_bucket_size, config.zero.overlap_comm) == (
        1,
        50_000_000,
        False,
    )
    assert (config.dtype, config.grad_accum_dtype, config.check_grad_overflow) == ("bf16", "fp32", False)
    assert (config.gradient_clipping, config.steps_per_print, config.log_level) == (0.0, 10, logging.WARNING)
    assert config.optimizer == OptimizerConfig("AdamW", {"lr": 1e-3})
    assert config.scheduler is not None
    assert config.scheduler.params == {}
    assert config.notes == ()


@pytest.mark.parametrize(
    ("raw", "stage"),
    [({"zero_optimization": True}, 1), ({"zero_optimization": False}, 0), ({"zero_optimization": {}}, 0)],
)
def test_zero_as_a_bool(raw: dict[str, object], stage: int) -> None:
    assert parse_config(raw).zero.stage == stage


def test_bf16_gradients_follow_the_model_unless_told() -> None:
    assert parse_config({"bf16": {"enabled": True}}).grad_accum_dtype == "bf16"
    assert parse_config({"bfloat16": {"enabled": True}}).dtype == "bf16"


GOLDEN = [
    (
        {"zero_optimization": {"reduce_bukcet_size": 5}},
        "unknown key zero_optimization.reduce_bukcet_size",
        "did you mean zero_optimization.reduce_bucket_size?",
    ),
    ({"zero_opt": {"stage": 1}}, "unknown key zero_opt", "did you mean zero_optimization?"),
    (
        {"zero_optimization": {"offload_optimizer": {"device": "none", "pin_memry": True}}},
        "unknown key zero_optimization.offload_optimizer.pin_memry",
        "did you mean zero_optimization.offload_optimizer.pin_memory?",
    ),
    (
        {"reduce_bucket_size": 5},
        "unknown key reduce_bucket_size",
        "did you mean zero_optimization.reduce_bucket_size?",
    ),
    ({"micro_batch_size": 5}, "unknown key micro_batch_size", "did you mean train_micro_batch_size_per_gpu?"),
    (
        {"optimizer": {"type": "Adam", "scheduler": {"type": "WarmupLR"}}},
        "unknown key optimizer.scheduler",
        "did you mean scheduler?",
    ),
    ({"max_grad_norm": 1.0}, "unknown key max_grad_norm", "did you mean gradient_clipping?"),
    ({"trainBatchSize": 8}, "unknown key trainBatchSize", "did you mean train_batch_size?"),
    (
        {"flops_profiler": {"enabled": True, "profile_steps": 3}},
        "unknown key flops_profiler.profile_steps",
        "did you mean flops_profiler.profile_step?",
    ),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_step": 3}}},
        "unknown key scheduler.params.warmup_num_step",
        "did you mean scheduler.params.warmup_num_steps?",
    ),
    (
        {"scheduler": {"type": "WarmupDecayLR"}},
        "scheduler.params.total_num_steps is missing: WarmupDecayLR needs it",
        "write the number of optimizer steps of the whole run",
    ),
    (
        {"scheduler": {"type": "WarmUpLR"}},
        "scheduler.type: WarmUpLR is neither DeepSpeed's nor in torch.optim.lr_scheduler",
        "did you mean WarmupLR?",
    ),
    (
        {"scheduler": {"type": "ReduceLROnPlateau"}},
        "scheduler.type: ReduceLROnPlateau is not supported: it needs a metric that the engine does not have",
        "make it in the script: initialize(lr_scheduler=lambda optimizer: ...)",
    ),
    (
        {"optimizer": {"type": "AdamW", "params": {"wieght_decay": 0.1}}},
        "unknown key optimizer.params.wieght_decay",
        "did you mean optimizer.params.weight_decay?",
    ),
    (
        {"optimizer": {"type": "Adamm"}},
        "optimizer.type: Adamm is not a supported DeepSpeed Optimizer, nor in torch.optim",
        "did you mean Adam?",
    ),
    (
        {"optimizer": {"type": "OneBitAdam"}},
        "optimizer.type: OneBitAdam is not supported: DeepSpeed itself has removed it",
        "use AdamW",
    ),
    (
        {"zero_optimization": {"stage": "two"}},
        "zero_optimization.stage: expects an integer but got 'two'",
        "write zero_optimization.stage without quotes",
    ),
    (
        {"comms_logger": {"prof_ops": "all_reduce"}},
        "comms_logger.prof_ops: expects a list of strings but got 'all_reduce'",
        "correct comms_logger.prof_ops",
    ),
    (
        {"flops_profiler": {"profile_step": 0}},
        "flops_profiler.profile_step: expects at least 1 but got 0",
        "correct flops_profiler.profile_step",
    ),
    (
        {"torch_autocast": {"enabled": True, "dtype": "fp8"}},
        "torch_autocast.dtype: expects one of bfloat16, torch.bfloat16, bf16, float16, torch.float16, "
        "fp16, half but got 'fp8'",
        "write bfloat16",
    ),
    (
        {"torch_autocast": {"enabled": True, "dtype": "float16"}},
        "torch_autocast.dtype: float16 needs a loss scale, which is not supported here",
        "write bfloat16",
    ),
    (
        {"torch_autocast": {"enabled": True}, "bf16": {"enabled": True}},
        "torch_autocast is for fp32 parameters, but bf16 or fp16 is enabled too",
        "keep one of them",
    ),
    (
        {"bfloat16": {"enabled": True}, "bf16": {"enabled": True}},
        "bf16 and bfloat16 are the same section, both are given",
        "keep bf16",
    ),
    (
        {"zero_optimization": {"cpu_offload": True, "offload_optimizer": {"device": "cpu"}}},
        "Cannot provide deprecated parameter 'cpu_offload' and replacing parameter 'offload_optimizer' "
        "together",
        "keep zero_optimization.offload_optimizer",
    ),
    (
        {"zero_optimization": {"max_live_parameters": 1, "stage3_max_live_parameters": 1}},
        "zero_optimization.max_live_parameters and zero_optimization.stage3_max_live_parameters are the same "
        "key, both are given",
        "keep zero_optimization.stage3_max_live_parameters",
    ),
    (
        {"train_batch_size": "8"},
        "train_batch_size: expects an integer but got '8'",
        "write train_batch_size without quotes",
    ),
    (
        {"train_batch_size": 8.5},
        "train_batch_size: expects an integer but got 8.5",
        "correct train_batch_size",
    ),
    (
        {"bf16": {"enabled": 1}},
        "bf16.enabled: expects true or false but got 1",
        "correct bf16.enabled",
    ),
    ({"bf16": True}, "bf16: expects an object but got True", 'write "bf16": { ... }'),
    (
        {"train_batch_size": "auto"},
        'train_batch_size: "auto" is only known to frameworks that fill it in (the Hugging Face Trainer)',
        "write a value for train_batch_size",
    ),
    ({"fp16": {"enabled": True}}, "fp16 is not supported yet; use bf16", 'write "bf16": {"enabled": true}'),
    (
        {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
        "bfloat16 and fp16 modes cannot be simultaneously enabled",
        "disable fp16",
    ),
    (
        {"zero_optimization": {"stage": 2}},
        "zero_optimization.stage: ZeRO stage 2 is not supported yet",
        "use stage 1: the same training, with gradients (and parameters) kept whole on every rank",
    ),
    (
        {"zero_optimization": {"stage": 4}},
        "zero_optimization.stage: expects 0, 1, 2 or 3 but got 4",
        "write 0 or 1",
    ),
    (
        {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
        "zero_optimization.offload_optimizer: {'device': 'cpu'} is refused: offload is not supported yet",
        "remove the key",
    ),
    (
        {"gradient_clipping": -1},
        "gradient_clipping: expects at least 0 but got -1",
        "correct gradient_clipping",
    ),
    (
        {"communication_data_type": "fp16"},
        "communication_data_type: fp16 is refused: gradients travel in their accumulation dtype",
        "remove it (fp32 is used), or set data_types.grad_accum_dtype",
    ),
    (
        {"optimizer": {"params": {"lr": 1}}},
        "optimizer.params is given without optimizer.type",
        "write optimizer.type",
    ),
    (
        {"steps_per_print": 0},
        "steps_per_print: expects a positive integer but got 0",
        "write e.g. 10",
    ),
]


@pytest.mark.parametrize(("raw", "what", "hint"), GOLDEN, ids=[what for _, what, _ in GOLDEN])
def test_refusals_word_for_word(raw: dict[str, object], what: str, hint: str) -> None:
    assert refusal(raw) == (what, hint)


def test_no_effect_is_said_once_for_each_reason() -> None:
    config = parse_config(
        {
            "zero_optimization": {
                "stage": 1,
                "contiguous_gradients": True,
                "allgather_bucket_size": 2e8,
                "stage3_max_live_parameters": 1e9,
                "stage3_max_reuse_distance": "auto",
                "stage3_prefetch_bucket_size": 5e7,
            },
            "tensorboard": {"enabled": True, "output_path": "x"},
            "comet": {"enabled": True, "project": "x"},
            "sparse_gradients": True,
        }
    )
    assert config.notes == (
        'zero_optimization.stage3_max_reuse_distance: "auto" was left in, the default holds',
        "zero_optimization.allgather_bucket_size: no effect, "
        "parameters are gathered in the buckets of reduce_bucket_size",
        "comet: no effect, there is no Comet monitor; use tensorboard, csv_monitor or wandb",
        "sparse_gradients: no effect, DeepSpeed itself has removed it; gradients are dense",
        "zero_optimization.stage3_max_live_parameters, zero_optimization.stage3_prefetch_bucket_size: "
        "no effect, only ZeRO stage 3 reads it",
    )
    assert config.warnings == ()


def test_what_will_surprise_is_a_warning() -> None:
    config = parse_config(
        {
            "amp": {"enabled": True},
            "elasticity": {"enabled": True, "max_train_batch_size": 9},
            "sparse_attention": {"mode": "fixed", "block": 16},
            "bf16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
        }
    )
    assert config.warnings == (
        "amp: no effect, DeepSpeed itself has removed it; write bf16 for low precision",
        "elasticity, sparse_attention: no effect, DeepSpeed itself has removed it",
        "bf16.loss_scale, bf16.initial_scale_power: no effect, "
        "bf16 needs no loss scale: these are keys of fp16",
    )


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


def test_auto_left_in_a_section_is_the_default() -> None:
    config = parse_config(
        {
            "fp16": {"enabled": "auto", "loss_scale": "auto"},
            "zero_optimization": {
                "stage": 1,
                "reduce_bucket_size": "auto",
                "offload_param": {"device": "auto"},
            },
        }
    )
    assert config.zero.reduce_bucket_size == 500_000_000
    assert config.notes == (
        'fp16.enabled, fp16.loss_scale, zero_optimization.reduce_bucket_size: "auto" was left in, '
        "the default holds",
    )


def test_old_spellings() -> None:
    config = parse_config(
        {"zero_optimization": {"stage": 1, "stage3_gather_fp16_weights_on_model_save": True}}
    )
    assert config.zero.stage3.gather_16bit_weights_on_model_save
    assert config.notes[0] == (
        "zero_optimization.stage3_gather_fp16_weights_on_model_save is the old name of "
        "stage3_gather_16bit_weights_on_model_save"
    )
    assert (
        parse_config({"zero_optimization": {"max_live_parameters": 5}}).zero.stage3.max_live_parameters == 5
    )
    assert refusal({"zero_optimization": {"cpu_offload": True}})[0].startswith(
        "zero_optimization.offload_optimizer: {'device': 'cpu'} is refused"
    )


def test_quoted_values_in_sections_are_values() -> None:
    assert parse_config({"bf16": {"enabled": "True"}}).dtype == "bf16"
    zero = parse_config({"zero_optimization": {"stage": "1", "reduce_bucket_size": "5e7"}}).zero
    assert (zero.stage, zero.reduce_bucket_size) == (1, 50_000_000)


def test_sections_about_watching() -> None:
    config = parse_config(
        {
            "flops_profiler": {"enabled": True, "profile_step": 5, "output_file": "flops.txt"},
            "comms_logger": {"enabled": True, "prof_all": False, "prof_ops": ["all_reduce"]},
            "csv_monitor": {"enabled": True, "output_path": "logs", "job_name": "j"},
            "timers": {"throughput": {"enabled": False}},
            "activation_checkpointing": {"cpu_checkpointing": True},
        }
    )
    assert config.flops_profiler == FlopsProfilerConfig(True, profile_step=5, output_file="flops.txt")
    assert config.wall_clock_breakdown  # the profiler wants times
    assert config.comms_logger == CommsLoggerConfig(True, False, ("all_reduce",))
    assert config.csv_monitor == CsvMonitorConfig(True, "logs", "j")
    assert not config.throughput.enabled
    assert config.activation_checkpointing.cpu_checkpointing


def test_a_survey_tells_every_error() -> None:
    found = survey(
        {
            "zero_opt": {},
            "train_batch_size": "8",
            "bf16": {"enabled": 1},
            "fp16": {"enabled": True},
            "optimizer": {"type": "Adamm"},
            "zero_optimization": {"stage": 7, "overlap_com": True},
            "log_level": "loud",
            "nothing_like_it": 1,
        }
    )
    assert [error.path for error in found.errors] == [
        "zero_opt",
        "train_batch_size",
        "bf16.enabled",
        "zero_optimization.overlap_com",
        "fp16.enabled",
        "zero_optimization.stage",
        "optimizer.type",
        "log_level",
    ]
    assert found.unknown == ("nothing_like_it",)


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


@given(st.sampled_from([path for path in paths(TOP) if len(path.rpartition(".")[2]) > 6]), st.data())
def test_one_letter_missing_is_noticed(path: str, data: st.DataObject) -> None:
    section, _, key = path.rpartition(".")
    cut = data.draw(st.integers(0, len(key) - 1))
    wrong = key[:cut] + key[cut + 1 :]
    known = {other.rpartition(".")[2] for other in paths(TOP) if other.rpartition(".")[0] == section}
    if wrong not in known:
        assert similar_key(wrong, known) is not None


def test_old_keys_that_are_off_pass() -> None:
    config = parse_config(
        {
            "amp": {"enabled": False},
            "sparse_gradients": False,
            "fp16": {"enabled": False, "loss_scale": 0, "initial_scale_power": 16},
            "zero_optimization": {"cpu_offload": False, "offload_param": {"device": "none"}},
            "steps_per_print": math.inf,
            "compression_training": {"enabled": False, "anything": {"at": "all"}},
        }
    )
    assert config == EngineConfig()


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


def test_json_with_comments_and_trailing_commas() -> None:
    text = """{
      // a line
      "a": "http://not/a/comment, # nor this,]", # another
      /* a
         block */ "b": [1, 2,],
    }"""
    assert parse_text(text, "x.json") == {"a": "http://not/a/comment, # nor this,]", "b": [1, 2]}


def test_syntax_errors_name_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{\n  // comment\n  "a": 1,\n  "b" 2\n}\n')
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert caught.value.what == f"{path}:4:7: not valid JSON: expecting ':' delimiter"


def test_text_that_is_not_quite_json_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"train_batch_size": 2, // mine\n}')
    assert load_source(path).notes == (
        f"{path} has comments and trailing commas: read here, but it is not JSON to other programs",
    )
    assert load_config(path).notes == load_source(path).notes
    path.write_text('{"train_batch_size": 2}')
    assert load_source(path).notes == ()


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(b'\xef\xbb\xbf{"train_batch_size": 2}')
    assert load_config(path).batch.train_batch_size == 2
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.what == f"{path} is not UTF-8 text"


def test_duplicate_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_text('{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}', "x.json")
    assert caught.value.what == "Duplicate keys in DeepSpeed config: ['c', 'a']"


def test_sources(tmp_path: Path) -> None:
    raw = {"train_batch_size": 4}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(raw))
    encoded = base64.urlsafe_b64encode(json.dumps(raw).encode()).decode()
    for source in (raw, str(path), path, encoded):
        assert load_config(source).batch.train_batch_size == 4
    with pytest.raises(ConfigError) as caught:
        load_config("no/such/file.json")
    assert caught.value.what == (
        "Expected a string path to an existing deepspeed config, or a dictionary or a valid base64. "
        "Received: no/such/file.json"
    )


def test_one_source_only() -> None:
    args = argparse.Namespace(deepspeed_config="a.json")
    assert choose_source(None, None, args) == "a.json"
    assert choose_source(None, {"a": 1}, None) == {"a": 1}
    with pytest.raises(ConfigError) as caught:
        choose_source({}, None, args)
    assert caught.value.what == (
        "Not sure how to proceed, we were given deepspeed configs in the deepspeed arguments "
        "and deepspeed.initialize() function call"
    )
    with pytest.raises(ConfigError) as caught:
        choose_source(None, None, argparse.Namespace(deepspeed_config=None))
    assert caught.value.what == "DeepSpeed requires --deepspeed_config to specify configuration file"


def test_arguments_of_the_script() -> None:
    parser = add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", "c.json"])
    assert (args.deepspeed, args.deepspeed_config) == (True, "c.json")


@given(JSON_VALUES, st.data())
def test_comments_and_trailing_commas_change_nothing(value: object, data: st.DataObject) -> None:
    """Strings that look like comments or hold commas and brackets stay as they are."""
    body = {"a": value, 'b"//x': "http://y /* z */ # ,]", "c,}": [value, "\\"]}
    text = json.dumps(body, indent=2)
    lines = text.split("\n")
    comments = st.sampled_from(["", " // one, two}", " # three ]", " /* four\n five, */"])
    loose = "\n".join(line + data.draw(comments) for line in lines)
    loose = re.sub(r"\n(\s*[}\]])", r",\n\1", loose) if data.draw(st.booleans()) else loose
    assert json.dumps(parse_text(loose, "x.json")) == json.dumps(body)
