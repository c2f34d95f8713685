"""Where DeepSpeed defines `deepspeed.comm`."""

from dslaunch.engine.comm import *
from dslaunch.engine.comm import __all__ as __all__
