"""Loss scaling for fp16: gradients are multiplied by a power of two so that small ones survive. No torch.

Source: DeepSpeed's documented algorithm (its DynamicLossScaler), after Micikevicius et al., "Mixed Precision
Training" (2018), section 3.2. An overflow is a step whose gradient norm is inf or nan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dslaunch.engine.config_values import Fp16Config
from dslaunch.engine.errors import EngineError


@dataclass(slots=True)
class LossScaleState:
    """What a scaler carries from step to step."""

    scale: float
    hysteresis_left: int  # overflows to go until the scale halves
    num_steps: int = 0
    last_overflow: int = -1  # the step of the last overflow


class LossScaler:
    """The current scale; `update` after every step.

    Static where `loss_scale` is set. Otherwise an overflow halves the scale once hysteresis is used up, and
    `loss_scale_window` good steps in a row double it.
    """

    def __init__(self, config: Fp16Config) -> None:
        self.config = config
        self.dynamic = config.loss_scale == 0
        scale = 2.0**config.initial_scale_power if self.dynamic else float(config.loss_scale)
        self.state = LossScaleState(scale, config.hysteresis)

    @property
    def scale(self) -> float:
        """What the loss is multiplied by."""
        return self.state.scale

    def update(self, overflow: bool) -> str:
        """Take a step's outcome in; returns what to say about an overflow, in DeepSpeed's words, else "".

        EngineError when the scale would have to fall below `min_loss_scale`.
        """
        state = self.state
        said = ""
        if self.dynamic and overflow:
            said = self._overflow()
        elif self.dynamic:
            self._good()
        elif overflow:
            said = f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Static loss scale: {state.scale:g}"
        state.num_steps += 1
        return said

    def state_dict(self) -> dict[str, float]:
        """Plain numbers, for checkpoints."""
        return asdict(self.state)

    def load_state_dict(self, saved: Mapping[str, float]) -> None:
        """Continue where `state_dict` was taken; a static scale stays the config's."""
        if self.dynamic:
            self.state = LossScaleState(
                float(saved["scale"]),
                int(saved["hysteresis_left"]),
                int(saved["num_steps"]),
                int(saved["last_overflow"]),
            )

    def _overflow(self) -> str:
        state, config = self.state, self.config
        start = f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {state.scale:g}, "
        state.last_overflow = state.num_steps
        if config.hysteresis > 1 and state.hysteresis_left > 1:
            state.hysteresis_left -= 1
            return (
                f"{start}but hysteresis is {state.hysteresis_left + 1}. "
                f"Reducing hysteresis to {state.hysteresis_left}"
            )
        if state.scale <= config.min_loss_scale:
            raise EngineError(
                "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
                "the gradients are inf or nan at any scale: use bf16 if the weights were trained in it, "
                "lower the learning rate, or look for a division by zero in the loss",
            )
        state.scale = max(state.scale / 2, config.min_loss_scale)
        return f"{start}reducing to {state.scale:g}"

    def _good(self) -> None:
        state, config = self.state, self.config
        if config.consecutive_hysteresis:
            state.hysteresis_left = config.hysteresis
        stable = state.num_steps - state.last_overflow - 1
        if stable > 0 and stable % config.loss_scale_window == 0:
            if not config.consecutive_hysteresis:
                state.hysteresis_left = config.hysteresis
            state.scale *= 2
