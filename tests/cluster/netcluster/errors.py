"""The one error of the test cluster."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """A cluster that cannot be built, or an order that makes no sense for it."""
