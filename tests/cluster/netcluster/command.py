"""Commands of the machine: found by name, run to the end, their own words in the error."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from netcluster.errors import ClusterError

SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_PACKAGES = {
    "bridge": "iproute2",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "unshare": "util-linux",
}
TOOLS = tuple(_PACKAGES)
"""Every command a cluster needs."""


def tool(name: str) -> str:
    """The full path of a command, also where PATH leaves out the sbin folders. Raises ClusterError."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")
    if path is None:
        raise ClusterError(f"{name} not found: apt-get install {_PACKAGES.get(name, name)}")
    return path


def run(
    argv: Sequence[str], stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run to the end and capture the output. Raises ClusterError, with stderr, if `check` and it failed."""
    done = subprocess.run(argv, input=stdin, text=True, capture_output=True)
    if check and done.returncode:
        raise ClusterError(f"{shlex.join(argv)} -> {done.returncode}: {done.stderr.strip()}")
    return done


def ip_batch(lines: Iterable[str], netns: str | None = None) -> None:
    """Many iproute2 commands in one process, in order. Raises ClusterError at the first that fails."""
    where = ["-n", netns] if netns else []
    run([tool("ip"), *where, "-batch", "-"], stdin="".join(f"{line}\n" for line in lines))
