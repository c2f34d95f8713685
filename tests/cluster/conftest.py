"""The cluster that tests of this folder share, or the reason why there is none here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from netcluster import Cluster, clusters, why_impossible


@pytest.fixture(scope="session")
def netns_possible() -> None:
    """Skips the test, with the reason, where hosts of network namespaces cannot be made.

    With NETCLUSTER_REQUIRED in the environment it fails instead, where a machine is known to be able to.
    """
    reason = why_impossible()
    if reason is not None:
        give_up = pytest.fail if os.environ.get("NETCLUSTER_REQUIRED") else pytest.skip
        give_up(f"no cluster of network namespaces here: {reason}")


@pytest.fixture(scope="session")
def cluster(netns_possible: None) -> Iterator[Cluster]:
    """worker-0 and worker-1 with two slots each; every test finds them booted, healed and idle."""
    _remove_orphans()
    with Cluster(f"t{os.getpid()}") as shared:
        shared.up(2, slots=2)
        yield shared


@pytest.fixture(autouse=True)
def _restored(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        shared = request.getfixturevalue("cluster")
        assert isinstance(shared, Cluster)
        shared.restore()


def _remove_orphans() -> None:
    """Remove what runs that were killed with SIGKILL have left: clusters are named after their process."""
    for found in clusters():
        pid = found.prefix.removeprefix("t")
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            found.down()
