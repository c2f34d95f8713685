"""What ssh says when it fails, in one line that says what to do."""

from __future__ import annotations

import re

# Looked for in this order: the first that is found anywhere in what ssh said.
_MEANINGS = (
    (
        r"could not resolve hostname ([^:\s]+)",
        "cannot resolve host name '{0}'; check the hostfile's spelling",
    ),
    (
        r"remote host identification has changed",
        "host key changed; if the host was reinstalled, remove its old key with ssh-keygen -R",
    ),
    (
        r"host key verification failed",
        "host key unknown; add it to known_hosts (ssh-keyscan), after comparing its fingerprint",
    ),
    (
        r"permission denied",
        "permission denied; put your key there with ssh-copy-id: passwords are never asked for",
    ),
    (
        r"too many authentication failures",
        "too many keys were offered; set IdentityFile and IdentitiesOnly yes",
    ),
    (r"connection refused", "connection refused; is sshd running there, and on that port?"),
    (
        r"no route to host|network is unreachable",
        "no route; check its address, this machine's routes, and firewalls",
    ),
    (
        r"connection timed out|operation timed out",
        "no answer; is the host up, and does a firewall drop the port?",
    ),
    (r"timeout, server \S+ not responding", "the link went silent for 15 s"),
    (r"bad configuration option|no such file or directory", "ssh refuses its configuration"),
    (
        r"connection (?:reset|closed)|broken pipe|kex_exchange_identification",
        "the host closed the connection",
    ),
)


def explained(stderr: str) -> str:
    """`stderr` of an ssh that failed, with a last line that names the cause where it is a known one."""
    said = stderr.replace("\r", "").rstrip("\n")
    if not said:
        return "ssh failed without a word; try it by hand, with ssh -v"
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, said, re.IGNORECASE):
            return f"{said}\n{meaning.format(*found.groups())}"
    return said
