"""Asking whether something is ZeRO's, and its errors."""

from dslaunch.compat.zero_names import is_zero_param, is_zero_supported_optimizer
from dslaunch.engine.errors import EngineError as ZeRORuntimeException

__all__ = ["ZeRORuntimeException", "is_zero_param", "is_zero_supported_optimizer"]
