"""What stage 3 gathers together: a model's blocks, found in its module tree. No tensors are touched.

A unit is a module whose parameters are gathered and released together. Blocks are the members of a
ModuleList (or of anything above one); whatever stands beside them (embeddings, the head) is a unit of its
own, and so are the parameters a module above the blocks owns itself. A block larger than LARGE_NUMEL is
split into its children, a module marked as leaf never is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from dslaunch.engine.config_values import LeafModules
from dslaunch.engine.errors import EngineError

LARGE_NUMEL = 1 << 28
LEAF_MARK = "_ds_leaf_module"

_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)  # their members are blocks
_CONTAINERS = (*_LISTS, torch.nn.ModuleDict)  # most have no forward of their own


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A module whose forward needs `params` gathered."""

    name: str
    module: torch.nn.Module
    params: tuple[torch.nn.Parameter, ...]


@dataclass(frozen=True, slots=True)
class UnitRules:
    """What decides where a unit ends."""

    is_leaf: Callable[[str, torch.nn.Module], bool]
    numel_of: Callable[[torch.nn.Parameter], int]


def find_units(root: torch.nn.Module, rules: UnitRules) -> list[Unit]:
    """All units in the order of the module tree; a shared parameter belongs to every unit that holds it."""
    if rules.is_leaf("", root) or not any(True for _ in root.children()):
        return [Unit("", root, tuple(root.parameters()))]
    return list(_split("", root, rules))


def leaf_rule(config: LeafModules) -> Callable[[str, torch.nn.Module], bool]:
    """Whether a module counts as one: marked by set_z3_leaf_modules, or named by `leaf_module`."""

    def is_leaf(name: str, module: torch.nn.Module) -> bool:
        kind = type(module)
        return bool(
            getattr(module, LEAF_MARK, False)
            or kind.__name__ in config.classes
            or f"{kind.__module__}.{kind.__qualname__}" in config.classes
            or name in config.names
            or name.endswith(tuple(config.name_suffixes))
        )

    return is_leaf


def mark_leaves(
    model: torch.nn.Module, classes: Sequence[type[torch.nn.Module] | str], leaf: bool
) -> list[torch.nn.Module]:
    """Mark (or unmark) the modules of `classes`; EngineError when there is none."""
    wanted = tuple(kind for kind in classes if isinstance(kind, type))
    names = {kind for kind in classes if isinstance(kind, str)}
    found = [
        module
        for module in model.modules()
        if isinstance(module, wanted)
        or type(module).__name__ in names
        or f"{type(module).__module__}.{type(module).__qualname__}" in names
    ]
    if not found:
        listed = ", ".join(kind if isinstance(kind, str) else kind.__name__ for kind in classes)
        raise EngineError(
            f"no module of the model is of the leaf classes {listed}", "name classes of the model's modules"
        )
    for module in found:
        setattr(module, LEAF_MARK, leaf)
    return found


def compilable(units: Sequence[Unit]) -> list[torch.nn.Module]:
    """Units whose parameters are theirs alone: a tied one may be gathered anew under another unit's graph."""
    owners = Counter(id(param) for unit in units for param in unit.params)
    alone = [unit.module for unit in units if all(owners[id(param)] == 1 for param in unit.params)]
    # A module above blocks is no graph of its own: only its children's forwards are.
    above = {id(m) for m in alone for inner in m.modules() if inner is not m and inner in alone}
    return [module for module in alone if id(module) not in above]


def _split(name: str, module: torch.nn.Module, rules: UnitRules) -> Iterator[Unit]:
    own = tuple(module.parameters(recurse=False))
    if own:
        yield Unit(name, module, own)
    in_list = isinstance(module, _LISTS)
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        params = tuple(child.parameters())
        if not params:
            continue
        if not rules.is_leaf(path, child) and (
            (isinstance(child, _CONTAINERS) and not (in_list and _is_plain_sequence(child)))
            or (not in_list and _is_above_blocks(child))
            or _is_large(child, params, rules)
        ):
            yield from _split(path, child, rules)
        else:
            yield Unit(path, child, params)


def _is_plain_sequence(module: torch.nn.Module) -> bool:
    """Whether it is a Sequential of single layers: in a list, that is a block."""
    return isinstance(module, torch.nn.Sequential) and not any(
        _has_parameters(grandchild) for child in module.children() for grandchild in child.children()
    )


def _is_above_blocks(module: torch.nn.Module) -> bool:
    return any(
        isinstance(inner, _LISTS) and sum(_has_parameters(child) for child in inner.children()) > 1
        for inner in module.modules()
    )


def _is_large(module: torch.nn.Module, params: Sequence[torch.nn.Parameter], rules: UnitRules) -> bool:
    children = sum(_has_parameters(child) for child in module.children())
    return children > 1 and sum(rules.numel_of(param) for param in params) > LARGE_NUMEL


def _has_parameters(module: torch.nn.Module) -> bool:
    return any(True for _ in module.parameters())
