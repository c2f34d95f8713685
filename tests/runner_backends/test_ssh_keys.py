"""Which keys are offered, from where, and what is said when none of them will do."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import pytest

from dslaunch.hostfile import Host

if TYPE_CHECKING:
    from conftest import Dialer, Sshd

USER = getpass.getuser()


def new_key(path: Path, passphrase: str | None = None, algorithm: str = "ssh-ed25519") -> Path:
    key = asyncssh.generate_private_key(algorithm, comment=path.name)
    key.write_private_key(path, passphrase=passphrase, rounds=1, ignore_few_rounds=True)
    path.chmod(0o600)
    key.write_public_key(path.with_name(path.name + ".pub"))
    return path


@pytest.fixture
def agent(dialer: Dialer) -> Iterator[str]:
    """The socket of an agent that holds the hosts' client key."""
    if shutil.which("ssh-agent") is None or shutil.which("ssh-add") is None:
        pytest.skip("needs OpenSSH's ssh-agent")
    # Not under tmp_path, whose name may be too long for a socket.
    with subprocess.Popen(["ssh-agent", "-D"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        socket = process.stdout.readline().split("=", 1)[1].split(";", 1)[0]
        environment = {**os.environ, "SSH_AUTH_SOCK": socket}
        subprocess.run(["ssh-add", "-q", str(dialer.hosts.client_key)], env=environment, check=True)
        yield socket
        process.terminate()


def test_a_key_that_the_host_does_not_take(dialer: Dialer, tmp_path: Path) -> None:
    key = new_key(tmp_path / "other")
    assert dialer.refused(dialer.block(IdentityFile=str(key))) == (
        f"worker-0: permission denied for user {USER} (tried {key} (ssh_config))",
        "put one of these keys there (passwords are never asked for): "
        f"ssh-copy-id -F {dialer.config} -p {dialer.hosts.port('worker-0')} {USER}@worker-0",
    )


def test_no_key_at_all(dialer: Dialer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dialer.refused(dialer.block(IdentityFile=None)) == (
        f"worker-0: permission denied for user {USER} (tried no key)",
        "no key file was found and there is no agent (SSH_AUTH_SOCK): "
        "make one with ssh-keygen, then ssh-copy-id it",
    )


def test_default_keys_are_found(dialer: Dialer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    key = new_key(tmp_path / ".ssh" / "id_ecdsa", algorithm="ecdsa-sha2-nistp256")
    text, _ = dialer.refused(dialer.block(IdentityFile=None))
    assert text == f"worker-0: permission denied for user {USER} (tried {key} (default))"
    shutil.copy(dialer.hosts.client_key, tmp_path / ".ssh" / "id_ed25519")
    assert dialer.run(dialer.block(IdentityFile=None), "echo", "in").stdout == b"in\n"


def test_key_files_that_cannot_be_used(dialer: Dialer, tmp_path: Path) -> None:
    locked = new_key(tmp_path / "locked", passphrase="secret")
    (tmp_path / "text").write_text("no key\n")
    files = f"{locked}\n  IdentityFile {tmp_path}/text\n  IdentityFile {tmp_path}/missing"
    assert dialer.refused(dialer.block(IdentityFile=files)) == (
        f"worker-0: permission denied for user {USER} (tried no key; not usable: "
        f"{locked} (needs a passphrase: ssh-add it), {tmp_path}/text (not a private key), "
        f"{tmp_path}/missing (no such file or directory))",
        "ssh-add the key, or name another by IdentityFile in ssh_config",
    )


def test_a_missing_key_file_does_not_stop_the_next(dialer: Dialer, tmp_path: Path) -> None:
    files = f"{tmp_path}/missing\n  IdentityFile {dialer.hosts.client_key}"
    assert dialer.run(dialer.block(IdentityFile=files), "echo", "in").stdout == b"in\n"


def test_a_user_that_the_hostfile_names(dialer: Dialer, tmp_path: Path) -> None:
    key = new_key(tmp_path / "other")
    host = Host("worker-0", (0,), user="alice")
    text, _ = dialer.refused(dialer.block(IdentityFile=str(key)), host=host)
    assert text == f"worker-0: permission denied for user alice (tried {key} (ssh_config))"


def test_the_agent_is_asked(dialer: Dialer, agent: str, tmp_path: Path) -> None:
    text = dialer.block(IdentityFile=f"{tmp_path}/missing", IdentityAgent=agent)
    assert dialer.run(text, "echo", "in").stdout == b"in\n"


def test_identities_only_keeps_other_agent_keys_back(dialer: Dialer, agent: str, tmp_path: Path) -> None:
    key = new_key(tmp_path / "other")
    text = dialer.block(IdentityFile=str(key), IdentityAgent=agent, IdentitiesOnly="yes")
    assert dialer.refused(text)[0] == (
        f"worker-0: permission denied for user {USER} (tried {key} (ssh_config))"
    )


def test_identities_only_lets_named_agent_keys_through(dialer: Dialer, agent: str, tmp_path: Path) -> None:
    named = tmp_path / "named"
    shutil.copy(dialer.hosts.client_key.with_suffix(".pub"), named)
    text = dialer.block(IdentityFile=str(named), IdentityAgent=agent, IdentitiesOnly="yes")
    assert dialer.run(text, "echo", "in").stdout == b"in\n"


def test_an_agent_that_is_gone_does_not_stop_a_key_file(dialer: Dialer, tmp_path: Path) -> None:
    assert dialer.run(dialer.block(IdentityAgent=f"{tmp_path}/gone"), "echo", "in").stdout == b"in\n"


def test_too_many_keys(dialer: Dialer, sshd: Sshd, tmp_path: Path) -> None:
    keys = [new_key(tmp_path / name) for name in ("a", "b", "c")]
    files = "\n  IdentityFile ".join(str(key) for key in keys)
    text = dialer.block(
        Port=str(sshd.port), UserKnownHostsFile=f"{sshd.directory}/known_hosts", IdentityFile=files
    )
    assert dialer.refused(text) == (
        f"worker-0: too many keys were offered for user {USER} "
        f"({', '.join(f'{key} (ssh_config)' for key in keys)})",
        "name the right one by IdentityFile, with IdentitiesOnly yes, in ssh_config",
    )
