"""The command-line tools of this machine, and where to get one that is missing."""

from __future__ import annotations

import shutil

from dslaunch.runner_backends.errors import BackendError

PACKAGES = {
    "ssh": "openssh-client",
    "pdsh": "pdsh",
    "srun": "slurm-client",
}


def find_tool(name: str, package: str | None = None) -> str:
    """The full path of a tool. Raises BackendError, in the tool's name, where it is not on PATH.

    `package` is the Debian package that holds it, where PACKAGES does not say.
    """
    path = shutil.which(name)
    if path is None:
        raise BackendError(
            name,
            "not installed on this machine, or not on PATH",
            f"on Debian and Ubuntu: apt-get install {package or PACKAGES[name]}; or take another --launcher",
        )
    return path
