"""Mixture of experts."""

from dslaunch.compat.state_dicts import as_groups as split_params_into_different_moe_groups_for_optimizer
from dslaunch.compat.unsupported import Missing

_missing = Missing(
    "moe.utils", "train the model's own experts with ZeRO stage 3 and zero.set_z3_leaf_modules"
)

configure_moe_param_groups = _missing.function("configure_moe_param_groups")


def is_moe_param(param: object) -> bool:
    """Never: no parameter belongs to experts that ranks share out."""
    return False


def has_moe_layers(module: object) -> tuple[bool, int]:
    """None, and so no experts."""
    return False, 0


__all__ = ["has_moe_layers", "is_moe_param", "split_params_into_different_moe_groups_for_optimizer"]
