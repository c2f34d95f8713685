"""DeepCompile."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("compile", "call engine.compile()")

init_z1 = _missing.function("init_z1")
init_z3 = _missing.function("init_z3")
