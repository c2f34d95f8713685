"""`from deepspeed import comm as dist`."""

from dslaunch.engine.comm import *
from dslaunch.engine.comm import __all__ as __all__
