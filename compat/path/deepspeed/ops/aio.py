"""Files read and written asynchronously."""

from dslaunch.compat.builders import builder
from dslaunch.compat.unsupported import Missing

_missing = Missing("ops.aio", "read files with Python")

AsyncIOBuilder = builder("AsyncIOBuilder")
aio_handle = _missing.function("aio_handle")
