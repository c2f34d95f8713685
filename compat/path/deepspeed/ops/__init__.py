"""Optimizers. Kernels are chosen when they are first used; nothing is built by importing them."""

from dslaunch.compat.lazy import lazy

__getattr__ = lazy(
    __name__,
    {
        "__compatible_ops__": "deepspeed.git_version_info:compatible_ops",
        "__installed_ops__": "deepspeed.git_version_info:installed_ops",
    },
)
