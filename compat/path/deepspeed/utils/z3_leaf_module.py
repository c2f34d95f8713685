"""Modules that stage 3 gathers with all their children at once."""

from dslaunch.engine.zero import (
    get_z3_leaf_modules,
    set_z3_leaf_module,
    set_z3_leaf_modules,
    unset_z3_leaf_modules,
    z3_leaf_module,
)

__all__ = [
    "get_z3_leaf_modules",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
    "z3_leaf_parameter",
]


def z3_leaf_parameter(param: object) -> bool:
    """Whether the parameter's module is marked as a leaf: known of modules only."""
    return bool(getattr(param, "ds_z3_leaf_module", None))
