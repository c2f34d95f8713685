"""What a ds_config.json may say, and what becomes of it."""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Mapping

import pytest

from dslaunch.engine.config import EngineConfig, OptimizerConfig, parse_config
from dslaunch.engine.config_observe import CommsLoggerConfig, CsvMonitorConfig, FlopsProfilerConfig
from dslaunch.engine.config_source import choose_source
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


@pytest.mark.parametrize("mode", ["Warn", "ignore", "FAIL"])
def test_modes_of_tag_validation(mode: str) -> None:
    assert parse_config({"checkpoint": {"tag_validation": mode}}).warnings == ()
    with pytest.raises(ConfigError, match="expects one of warn, ignore, fail but got 'foo'"):
        parse_config({"checkpoint": {"tag_validation": "foo"}})


def test_moments_in_bf16_by_deepspeeds_name() -> None:
    bf16 = {"enabled": True, "bf16_optimizer_states": True}
    adam = parse_config({"bf16": bf16, "optimizer": {"type": "Adam", "params": {"lr": 1}}})
    assert adam.optimizer == OptimizerConfig("Adam", {"moment_dtype": "bf16", "lr": 1})
    lion = parse_config({"bf16": bf16, "optimizer": {"type": "Lion", "params": {}}})
    assert lion.warnings == ("bf16.bf16_optimizer_states: no effect, Lion keeps its states in fp32",)
    assert len(parse_config({"bf16": bf16}).warnings) == 1


def test_bf16_gradients_follow_the_model_unless_told() -> None:
    assert parse_config({"bf16": {"enabled": True}}).grad_accum_dtype == "bf16"
    assert parse_config({"bfloat16": {"enabled": True}}).dtype == "bf16"


def test_no_effect_is_said_once_for_each_reason() -> None:
    config = parse_config(
        {
            "zero_optimization": {
                "stage": 1,
                "contiguous_gradients": True,
                "allgather_bucket_size": 2e8,
                "stage3_max_live_parameters": 1e9,
                "stage3_param_persistence_threshold": "auto",
                "stage3_prefetch_bucket_size": 5e7,
            },
            "tensorboard": {"enabled": True, "output_path": "x"},
            "comet": {"enabled": True, "project": "x"},
            "sparse_gradients": True,
        }
    )
    assert config.notes == (
        'zero_optimization.stage3_param_persistence_threshold: "auto" was left in, the default holds',
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
        "fp16.enabled, fp16.loss_scale, zero_optimization.reduce_bucket_size, "
        'zero_optimization.offload_param.device: "auto" was left in, the default holds',
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
    assert parse_config({"zero_optimization": {"stage": 2, "cpu_offload": True}}).zero.offload_optimizer.is_on


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
