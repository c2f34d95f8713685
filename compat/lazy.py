"""Packages whose names and submodules load with their first use, so that `import deepspeed` stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of `package`: names from `homes` ("module" or "module:name"), then submodules."""

    def __getattr__(name: str) -> object:  # noqa: N807 - it becomes the module's own
        home = homes.get(name)
        if home is not None:
            module, _, attribute = home.partition(":")
            found: object = import_module(module)
            found = getattr(found, attribute) if attribute else found
        elif not name.startswith("__") and find_spec(f"{package}.{name}") is not None:
            found = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, found)
        return found

    return __getattr__
