"""Where DeepSpeed defines `deepspeed.comm`."""

from dslaunch.compat.comm import *
from dslaunch.compat.comm import __all__ as __all__
