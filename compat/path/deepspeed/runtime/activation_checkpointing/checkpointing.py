"""Activation checkpointing."""

from dslaunch.engine.checkpointing import *
from dslaunch.engine.checkpointing import __all__ as __all__
