"""Which torch this is."""

from dslaunch.compat.torch_version import required_torch_version

__all__ = ["required_torch_version"]
