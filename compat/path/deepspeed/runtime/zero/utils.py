"""Asking whether something is ZeRO's."""

from dslaunch.compat.zero_names import is_zero_param, is_zero_supported_optimizer

__all__ = ["is_zero_param", "is_zero_supported_optimizer"]
