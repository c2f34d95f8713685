"""Sequence parallelism."""

from dslaunch.compat.lazy import lazy

__getattr__ = lazy(
    __name__,
    {},
)
