"""Optimizer kernels, each with a pure-torch reference that is both the oracle and the fallback.

The names below load with their first use, so that engine.optimizer and the build need not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.engine.ops.optimizers import (
        FusedAdagrad as FusedAdagrad,
    )
    from dslaunch.engine.ops.optimizers import (
        FusedAdamW as FusedAdamW,
    )
    from dslaunch.engine.ops.optimizers import (
        FusedLamb as FusedLamb,
    )
    from dslaunch.engine.ops.optimizers import (
        FusedLion as FusedLion,
    )
    from dslaunch.engine.ops.optimizers import (
        FusedSGD as FusedSGD,
    )

__all__ = ["FusedAdagrad", "FusedAdamW", "FusedLamb", "FusedLion", "FusedSGD"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from dslaunch.engine.ops import optimizers

        return getattr(optimizers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
