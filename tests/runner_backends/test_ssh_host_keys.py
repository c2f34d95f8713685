"""Host keys: which are taken, which refused, and what is written down, for each StrictHostKeyChecking."""

from __future__ import annotations

import asyncio
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand
from dslaunch.runner_backends.known_hosts import KnownHosts
from dslaunch.runner_backends.ssh import SshBackend
from dslaunch.runner_backends.ssh_config import SshConfig

if TYPE_CHECKING:
    from conftest import Dialer


@pytest.fixture
def name(dialer: Dialer) -> str:
    """What worker-0 is called in known_hosts."""
    return f"[127.0.0.1]:{dialer.hosts.port('worker-0')}"


@pytest.fixture
def shown(dialer: Dialer, name: str) -> str:
    """The key that worker-0 shows, as errors print it."""
    for line in dialer.hosts.known_hosts.read_text().splitlines():
        if line.startswith(f"{name} "):
            return f"ssh-ed25519 {asyncssh.import_public_key(line.split(' ', 1)[1]).get_fingerprint()}"
    raise AssertionError(name)


def other_key() -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()


def policed(dialer: Dialer, policy: str | None) -> str:
    return dialer.block(UserKnownHostsFile=str(dialer.known_hosts), StrictHostKeyChecking=policy)


@pytest.mark.parametrize("policy", [None, "ask", "yes"])
def test_unknown_is_refused(dialer: Dialer, name: str, shown: str, policy: str | None) -> None:
    port = dialer.hosts.port("worker-0")
    assert dialer.refused(policed(dialer, policy)) == (
        f"worker-0: host key unknown: {shown} (looked up as {name})",
        f"compare the fingerprint, then add it: ssh-keyscan -p {port} 127.0.0.1 >> {dialer.known_hosts}; "
        "or StrictHostKeyChecking accept-new in ssh_config",
    )
    assert not dialer.known_hosts.exists()


@pytest.mark.parametrize("policy", [None, "yes", "accept-new"])
def test_changed_is_refused_and_its_line_named(
    dialer: Dialer, name: str, shown: str, policy: str | None
) -> None:
    lines = f"# comment\nother {other_key()}\nnonsense\n{name} {other_key()}\n"
    dialer.known_hosts.write_text(lines)
    assert dialer.refused(policed(dialer, policy)) == (
        f"worker-0: host key changed: it now shows {shown}, not what {dialer.known_hosts} line 4 holds",
        "someone may be listening in, or the host was reinstalled: if you know it was, "
        f"ssh-keygen -R '{name}' -f {dialer.known_hosts}, and add the new key",
    )
    assert dialer.known_hosts.read_text() == lines


def test_no_takes_any_key_and_writes_nothing(dialer: Dialer, name: str) -> None:
    lines = f"{name} {other_key()}\n"
    dialer.known_hosts.write_text(lines)
    assert dialer.run(policed(dialer, "no"), "echo", "in").stdout == b"in\n"
    assert dialer.known_hosts.read_text() == lines


def test_accept_new_writes_the_key_once(dialer: Dialer, name: str, tmp_path: Path) -> None:
    known_hosts = tmp_path / "new" / "known_hosts"
    text = dialer.block(UserKnownHostsFile=str(known_hosts), StrictHostKeyChecking="accept-new")
    for _ in range(2):
        assert dialer.run(text, "echo", "in").stdout == b"in\n"
    (line,) = known_hosts.read_text().splitlines()
    assert line.startswith(f"{name} ssh-ed25519 ")
    assert stat.S_IMODE(known_hosts.stat().st_mode) == 0o600
    assert stat.S_IMODE(known_hosts.parent.stat().st_mode) == 0o700
    strict = dialer.block(UserKnownHostsFile=str(known_hosts), StrictHostKeyChecking="yes")
    assert dialer.run(strict, "echo", "in").stdout == b"in\n"


def test_accept_new_takes_many_logins_at_once(dialer: Dialer, name: str) -> None:
    dialer.config.write_text(policed(dialer, "accept-new"))

    async def main() -> None:
        backend = SshBackend(dialer.config)
        command = NodeCommand(Host("worker-0", (0,)), ("true",), b"")
        sessions = await asyncio.gather(*(backend.start(command) for _ in range(8)))
        assert {(await session.wait()).returncode for session in sessions} == {0}
        await backend.close()

    asyncio.run(main())
    assert [line.split()[0] for line in dialer.known_hosts.read_text().splitlines()] == [name]


def test_accept_new_adds_a_line_to_a_file_without_a_last_newline(dialer: Dialer, name: str) -> None:
    dialer.known_hosts.write_text(f"other {other_key()}")
    dialer.run(policed(dialer, "accept-new"), "true")
    assert [line.split()[0] for line in dialer.known_hosts.read_text().splitlines()] == ["other", name]


def test_accept_new_says_when_it_cannot_write(dialer: Dialer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "known_hosts"
    text = dialer.block(UserKnownHostsFile=str(path), StrictHostKeyChecking="accept-new")
    assert dialer.refused(text) == (
        f"worker-0: cannot write its host key to {path}: file exists",
        "name a file that you may write by UserKnownHostsFile in ssh_config",
    )


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH's ssh-keygen")
def test_hashed_names_are_ones_that_openssh_finds(dialer: Dialer, name: str) -> None:
    text = policed(dialer, "accept-new") + "  HashKnownHosts yes\n"
    dialer.run(text, "true")
    assert dialer.known_hosts.read_text().startswith("|1|")
    found = subprocess.run(["ssh-keygen", "-F", name, "-f", str(dialer.known_hosts)], capture_output=True)
    assert found.returncode == 0
    assert dialer.run(policed(dialer, "yes"), "echo", "in").stdout == b"in\n"


def test_an_alias_is_looked_up_bare(dialer: Dialer) -> None:
    key = dialer.hosts.known_hosts.read_text().splitlines()[0].split(" ", 1)[1]
    dialer.known_hosts.write_text(f"the-alias {key}\n")
    assert dialer.run(policed(dialer, "yes") + "  HostKeyAlias the-alias\n", "echo", "in").stdout == b"in\n"
    text, _ = dialer.refused(policed(dialer, "yes") + "  HostKeyAlias another\n")
    assert text.endswith("(looked up as another)")


def test_a_key_under_the_bare_name_will_do_but_not_condemn(dialer: Dialer) -> None:
    key = dialer.hosts.known_hosts.read_text().splitlines()[0].split(" ", 1)[1]
    dialer.known_hosts.write_text(f"127.0.0.1 {key}\n")
    assert dialer.run(policed(dialer, "yes"), "echo", "in").stdout == b"in\n"
    dialer.known_hosts.write_text(f"127.0.0.1 {other_key()}\n")
    text, _ = dialer.refused(policed(dialer, "yes"))
    assert text.startswith("worker-0: host key unknown: ")


def test_a_revoked_key_is_refused_whatever_else_is_said(dialer: Dialer, name: str) -> None:
    key = dialer.hosts.known_hosts.read_text().splitlines()[0].split(" ", 1)[1]
    dialer.known_hosts.write_text(f"{name} {key}\n@revoked {name} {key}\n")
    text, _ = dialer.refused(policed(dialer, "accept-new"))
    assert text == "worker-0: host key refused: host key is revoked"


def test_a_known_key_of_another_type_is_not_offered(dialer: Dialer, name: str) -> None:
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_public_key().decode()
    dialer.known_hosts.write_text(f"{name} {key}")
    text, hint = dialer.refused(policed(dialer, "yes"))
    port = dialer.hosts.port("worker-0")
    assert text == (
        f"worker-0: 127.0.0.1 port {port} has no host key of a type that {dialer.known_hosts} knows"
    )
    assert hint == f"look at the keys it has now: ssh-keyscan -p {port} 127.0.0.1"


def test_a_file_that_changes_is_read_again(dialer: Dialer, name: str) -> None:
    dialer.config.write_text(policed(dialer, "yes"))
    config = SshConfig(dialer.config).lookup(Host("worker-0", (0,)))
    known_hosts = KnownHosts()
    assert known_hosts.trusted(config).host_keys == ()
    dialer.known_hosts.write_text(f"{name} {other_key()}\n")
    assert len(known_hosts.trusted(config).host_keys) == 1
    dialer.known_hosts.write_text(f"{name} {other_key()}\n{name} {other_key()}\n")
    assert len(known_hosts.trusted(config).host_keys) == 2
