"""Programs of this machine, and what they say of themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dslaunch.launcher.programs import output_of


def compiler_versions() -> Mapping[str, str | None]:
    """g++ and nvcc; None where there is none that works."""
    first_line = output_of("g++", "--version").partition("\n")[0].strip()
    release = re.search(r"release (\S+),", output_of("nvcc", "--version"))
    return {"g++": first_line or None, "nvcc": release[1] if release else None}
