"""Loss-scale histories against the documented algorithm, written down a second time; and on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_pool import RankPool

from dslaunch.engine.config_values import Fp16Config
from dslaunch.engine.errors import EngineError
from dslaunch.engine.loss_scale import LossScaler


def documented(config: Fp16Config, overflows: list[bool]) -> list[float | str]:
    """The scale after every step, as the reference describes it; "end" where the run ends."""
    scale, left = 2.0**config.initial_scale_power, config.hysteresis
    last, history = -1, list[float | str]()
    for step, overflow in enumerate(overflows):
        if overflow:
            if config.hysteresis == 1 or left == 1:
                if scale == config.min_loss_scale:
                    return [*history, "end"]
                scale = max(scale / 2, config.min_loss_scale)
            else:
                left -= 1
            last = step
        else:
            if config.consecutive_hysteresis:
                left = config.hysteresis
            stable = step - last - 1
            if stable > 0 and stable % config.loss_scale_window == 0:
                if not config.consecutive_hysteresis:
                    left = config.hysteresis
                scale *= 2
        history.append(scale)
    return history


def ours(config: Fp16Config, overflows: list[bool]) -> list[float | str]:
    scaler = LossScaler(config)
    history: list[float | str] = []
    for number, overflow in enumerate(overflows):
        if number == 7:  # through a checkpoint
            saved, scaler = scaler.state_dict(), LossScaler(config)
            scaler.load_state_dict(saved)
        try:
            scaler.update(overflow)
        except EngineError:
            return [*history, "end"]
        history.append(scaler.scale)
    return history


@given(
    st.builds(
        Fp16Config,
        initial_scale_power=st.integers(0, 6),
        loss_scale_window=st.integers(1, 4),
        hysteresis=st.integers(1, 3),
        consecutive_hysteresis=st.booleans(),
        min_loss_scale=st.sampled_from([1.0, 2.0, 0.25]),
    ),
    st.lists(st.booleans(), max_size=40),
)
def test_histories_are_those_of_the_documented_algorithm(config: Fp16Config, overflows: list[bool]) -> None:
    if 2.0**config.initial_scale_power >= config.min_loss_scale:
        assert ours(config, overflows) == documented(config, overflows)


def test_what_is_said() -> None:
    scaler = LossScaler(Fp16Config(initial_scale_power=1))
    start = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, "
    assert scaler.update(False) == ""
    assert scaler.update(True) == f"{start}but hysteresis is 2. Reducing hysteresis to 1"
    assert scaler.update(True) == f"{start}reducing to 1"
    with pytest.raises(EngineError) as caught:
        scaler.update(True)
    assert caught.value.what == (
        "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    )
    assert "use bf16 if the weights were trained in it" in caught.value.hint


def test_a_static_scale_stays() -> None:
    scaler = LossScaler(Fp16Config(loss_scale=128.0))
    for overflow in (True, True, False, True):
        scaler.update(overflow)
    scaler.load_state_dict({"scale": 4.0})
    assert (scaler.scale, scaler.dynamic) == (128.0, False)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_overflows_skip_the_step_on_every_rank(ranks: RankPool, stage: int) -> None:
    ranks.run(2, "fp16_cases", "overflows_skip_the_step", stage)


def test_inputs_are_cast_and_direct_backward_is_scaled(ranks: RankPool) -> None:
    ranks.run(1, "fp16_cases", "inputs_are_cast_and_direct_backward_is_scaled")


@pytest.mark.parametrize("stage", [1, 3])
def test_overflows_skip_the_step_where_the_host_hears_of_it_late(ranks: RankPool, stage: int) -> None:
    ranks.run(2, "fp16_cases", "late_overflows_skip_the_step", stage)


def test_the_host_need_not_wait(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, "fp16_cases", "the_host_need_not_wait", str(tmp_path))


def test_edits_outlive_a_schedule_taken_back(ranks: RankPool) -> None:
    ranks.run(1, "fp16_cases", "edits_outlive_a_schedule_taken_back")


@pytest.mark.parametrize("stage", [0, 3])
def test_autocast_to_fp16_scales_the_loss(ranks: RankPool, stage: int) -> None:
    ranks.run(2, "fp16_cases", "autocast_to_fp16_scales_the_loss", stage)
