"""Files read and written asynchronously."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("ops.aio", "read files with Python")

AsyncIOBuilder = _missing.function("AsyncIOBuilder")
