"""DeepSpeed's old spellings, brought to the new ones before a configuration is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.engine.config_keys import ZERO
from dslaunch.engine.errors import ConfigError

_RENAMED = {"stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save"}
_SWITCHES = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}


def modernised(raw: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """`raw` in today's spelling, and a note for every key that was rewritten.

    ConfigError where an old and a new spelling are both given.
    """
    new = dict(raw)
    notes: list[str] = []
    if "bfloat16" in new:
        if "bf16" in new:
            raise ConfigError(
                "bf16 and bfloat16 are the same section, both are given", "keep bf16", "bfloat16"
            )
        new = {("bf16" if key == "bfloat16" else key): value for key, value in new.items()}
        notes.append("bfloat16 is the old name of bf16")
    zero = new.get("zero_optimization")
    if isinstance(zero, bool):
        new["zero_optimization"] = {"stage": int(zero)}
        notes.append(f"zero_optimization: {str(zero).lower()} is the old spelling of stage {int(zero)}")
    elif isinstance(zero, Mapping):
        new["zero_optimization"] = _zero(zero, notes)
    return new, notes


def _zero(zero: Mapping[str, object], notes: list[str]) -> dict[str, object]:
    at = "zero_optimization"
    new: dict[str, object] = {}
    for key, value in zero.items():
        name = str(key)
        if name in _SWITCHES:
            section = _SWITCHES[name]
            if section in zero and value:
                raise ConfigError(
                    f"Cannot provide deprecated parameter '{name}' and replacing parameter "
                    f"'{section}' together",
                    f"keep {at}.{section}",
                    f"{at}.{name}",
                )
            if value:
                new[section] = {"device": "cpu"}
                notes.append(f'{at}.{name} is the old spelling of {section}: {{"device": "cpu"}}')
            continue
        renamed = _RENAMED.get(name) or (f"stage3_{name}" if f"stage3_{name}" in ZERO else name)
        if renamed in new or (renamed != name and renamed in zero):
            raise ConfigError(
                f"{at}.{name} and {at}.{renamed} are the same key, both are given",
                f"keep {at}.{renamed}",
                f"{at}.{name}",
            )
        if name in _RENAMED:
            notes.append(f"{at}.{name} is the old name of {renamed}")
        new[renamed] = value
    return new
