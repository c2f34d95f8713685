"""Names and addresses of one cluster: a value, and the JSON by which other processes find it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from netcluster.errors import ClusterError

MAX_WORKERS = 240
"""Worker addresses are .10 and up in a /24."""

_PREFIX = re.compile(r"[a-z][a-z0-9]{0,7}")  # an interface name has 15 characters at most
_HOST = r"(?:login|switch|worker-\d+)"


def check_prefix(prefix: str) -> str:
    """`prefix`, if namespaces and interfaces can be named after it. Raises ClusterError."""
    if not _PREFIX.fullmatch(prefix):
        raise ClusterError(f"prefix {prefix!r} does not match [a-z][a-z0-9]{{0,7}}")
    return prefix


def is_netns_of(netns: str, prefix: str) -> bool:
    """Whether a network namespace belongs to the cluster, by its name alone."""
    return re.fullmatch(rf"{prefix}-{_HOST}", netns) is not None


@dataclass(frozen=True, slots=True)
class Layout:
    """Hosts of 198.18.<subnet>.0/24 (RFC 2544 keeps that range for tests).

    The machine itself, `root`, is .1, `login` .2, and `worker-I` .(10 + I).
    """

    prefix: str
    subnet: int
    hosts: tuple[str, ...]
    num_slots: int
    debian_hosts: bool
    """/etc/hosts gives a host's own name 127.0.1.1 first, as Debian's installer writes it."""

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(host for host in self.hosts if host != "login")

    @property
    def root_interface(self) -> str:
        return root_interface(self.prefix)

    def ip(self, host: str) -> str:
        """IPv4 address of a host or of `root`. Raises ClusterError for other names."""
        return f"198.18.{self.subnet}.{self._last_byte(host)}"

    def mac(self, host: str) -> str:
        return f"02:c1:00:00:{self.subnet:02x}:{self._last_byte(host):02x}"

    def netns(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    def _last_byte(self, host: str) -> int:
        if host == "root":
            return 1
        if host not in self.hosts:
            raise ClusterError(f"no host {host!r} in cluster {self.prefix!r}: {' '.join(self.hosts)}")
        return 2 if host == "login" else 10 + int(host.removeprefix("worker-"))


def root_interface(prefix: str) -> str:
    """The cluster's one network interface outside its own namespaces."""
    return f"{prefix}-root"


def read_layout(path: Path) -> Layout | None:
    """The layout once written to `path`, or None where there is none or it was cut short."""
    try:
        fields = json.loads(path.read_text())
        return Layout(**{**fields, "hosts": tuple(fields["hosts"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
