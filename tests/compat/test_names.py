"""What DeepSpeed's names give that the engine itself has no use for."""

import pytest
import torch

from dslaunch.compat.builders import COMPATIBLE_OPS, builder
from dslaunch.compat.config import DeepSpeedConfig
from dslaunch.compat.memory_needs import (
    estimate_zero2_model_states_mem_needs_all_cold,
    estimate_zero3_model_states_mem_needs,
    estimate_zero3_model_states_mem_needs_all_live,
)
from dslaunch.compat.optimizers import DeepSpeedCPUAdam
from dslaunch.compat.schedules import PARAMETER_NAMES
from dslaunch.compat.state_dicts import as_groups
from dslaunch.compat.torch_version import required_torch_version
from dslaunch.compat.zero_config import DeepSpeedZeroConfig, OffloadParamConfig
from dslaunch.engine import EngineError, initialize


def test_the_section_of_zero() -> None:
    section = DeepSpeedZeroConfig(stage=3, stage3_max_reuse_distance=7, offload_param={"device": "cpu"},
                                  offload_optimizer={"device": "cpu"}, sub_group_size=9)  # fmt: skip
    assert (section.stage, section.max_reuse_distance, section.sub_group_size) == (3, 7, 9)
    assert (section.prefetch_bucket_size, section.contiguous_gradients) == (50_000_000, True)
    assert isinstance(section.offload_param, OffloadParamConfig)
    assert DeepSpeedZeroConfig().offload_param is None
    assert DeepSpeedZeroConfig(
        stage3_gather_fp16_weights_on_model_save=True
    ).gather_16bit_weights_on_model_save
    with pytest.raises(ValueError, match="reduce_bucket_size: expects at least 1"):
        DeepSpeedZeroConfig(reduce_bucket_size=0)
    with pytest.raises(AttributeError, match="has no key round_trips"):
        _ = section.round_trips


def test_batch_sizes_can_be_worked_out_anew() -> None:
    config = DeepSpeedConfig({"train_batch_size": 8, "zero_optimization": {"stage": 2}})
    assert (config.train_batch_size, config.gradient_accumulation_steps) == (8, 1)
    assert config.zero_config.stage == 2
    config.train_batch_size, config.train_micro_batch_size_per_gpu = None, 3
    config._configure_train_batch_size()
    assert config.train_batch_size == 3
    config.train_batch_size = 7
    with pytest.raises(AssertionError, match="is not equal to micro_batch_per_gpu"):
        config._configure_train_batch_size()


def test_builders_can_be_asked_and_build_nothing() -> None:
    adam, aio = builder("FusedAdamBuilder"), builder("AsyncIOBuilder")
    assert (adam.NAME, COMPATIBLE_OPS[adam.NAME], aio().is_compatible()) == ("fused_adam", True, False)
    with pytest.raises(NotImplementedError, match=r"FusedAdamBuilder\.load is not part of"):
        adam().load()


def test_memory_needs_are_those_of_deepspeeds_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    estimate_zero2_model_states_mem_needs_all_cold(2_851_000_000, 8, 1)
    said = capsys.readouterr().out.splitlines()
    assert said[1:3] == ["HW: Setup with 1 node, 8 GPUs per node.", "SW: Model with 2851M total params."]
    assert said[4].split() == ["127.45GB", "|", "5.31GB", "|", "offload_optimizer=cpu"]
    assert said[5].split() == ["127.45GB", "|", "11.28GB", "|", "offload_optimizer=none"]
    needs = estimate_zero3_model_states_mem_needs(2_851_000_000, 32_000_000, 8, 1, False, False, True)
    assert needs == (1_536_000_000, 128_000_000 + 6_414_750_000, 128_000_000)
    tied = torch.nn.Sequential(torch.nn.Linear(1000, 2000), torch.nn.Linear(1000, 2000))
    tied[1].weight = tied[0].weight  # type: ignore[union-attr]
    estimate_zero3_model_states_mem_needs_all_live(tied)
    assert "SW: Model with 2M total params, 2M largest layer params." in capsys.readouterr().out


def test_versions_of_torch() -> None:
    assert required_torch_version("1.8")
    assert required_torch_version(min_version=2.0)
    assert not required_torch_version("99.1")
    assert not required_torch_version(max_version=1.8)


def test_small_names() -> None:
    assert PARAMETER_NAMES["WARMUP_NUM_STEPS"] == "warmup_num_steps"
    group = {"params": [], "name": "all"}
    assert as_groups(group) == as_groups((group,)) == [group]
    param = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    adam = DeepSpeedCPUAdam([param], fp32_optimizer_states=False)
    param.grad = torch.ones_like(param)
    adam.step()
    assert adam.state[param]["exp_avg"].dtype == torch.bfloat16


def test_a_scheduler_finds_what_the_optimizer_knows() -> None:
    """OneCycleLR cycles momentum only where the optimizer's defaults have betas."""
    model = torch.nn.Linear(2, 2)
    _, optimizer, _, _ = initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
        config={"train_batch_size": 1},
    )
    assert optimizer is not None
    assert optimizer.optimizer is optimizer
    assert optimizer.param_groups[0]["betas"][0] == pytest.approx(0.95)
    assert optimizer.fp32_partitioned_groups_flat[0].dtype == torch.float32


def test_no_group_is_made_against_the_scripts_will() -> None:
    from dslaunch.engine import init_distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    with pytest.raises(EngineError, match="dist_init_required is false"):
        init_distributed(dist_init_required=False)
