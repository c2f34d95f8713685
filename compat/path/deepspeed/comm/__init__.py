"""`from deepspeed import comm as dist`."""

from dslaunch.compat.comm import *
from dslaunch.compat.comm import __all__ as __all__
