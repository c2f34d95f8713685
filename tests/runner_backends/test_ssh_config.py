"""How each option of ssh_config is read, and what is said about a bad one."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.ssh_config import HostConfig, SshConfig, StrictHostKeyChecking
from dslaunch.runner_backends.ssh_connector import parse_jump

HOME = Path("~").expanduser()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "ssh_config"


def read(config: Path, text: str, host: Host | None = None) -> HostConfig:
    config.write_text(text)
    return SshConfig(config).lookup(host or Host("worker-0", (0,)))


def test_an_empty_file_leaves_the_defaults(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    ssh = HOME / ".ssh"
    assert read(config, "") == HostConfig(
        alias="worker-0",
        file=config,
        hostname="worker-0",
        port=22,
        user=getpass.getuser(),
        identity_files=tuple(
            ssh / name for name in ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
        ),
        identities_are_default=True,
        certificate_files=(),
        identities_only=False,
        agent_socket=None,
        proxy_jump=None,
        proxy_command=None,
        user_known_hosts=(ssh / "known_hosts", ssh / "known_hosts2"),
        global_known_hosts=(Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2")),
        host_key_alias=None,
        strict_host_key_checking=StrictHostKeyChecking.YES,
        hash_known_hosts=False,
        connect_timeout_s=None,
        chooses=frozenset(),
    )


def test_everything_that_is_acted_on(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/from/environment")
    text = """
        Host worker-*
            HostName %h.cluster
            Port 2222
            User bob
            IdentityFile ~/a key
            IdentityFile %d/.ssh/b
            IdentitiesOnly yes
            IdentityAgent ~/agent
            CertificateFile ~/c-cert.pub
            ProxyJump gate
            ProxyCommand nc %h %p
            UserKnownHostsFile ~/known /dev/null
            GlobalKnownHostsFile none
            HostKeyAlias w
            HashKnownHosts yes
            StrictHostKeyChecking accept-new
            ConnectTimeout 3
            KexAlgorithms curve25519-sha256
            ServerAliveInterval 60
        Host *
            Port 1
            IdentityFile ~/d
    """.replace("~/a key", '"~/a key"')
    found = read(config, text)
    assert found == HostConfig(
        alias="worker-0",
        file=config,
        hostname="worker-0.cluster",
        port=2222,
        user="bob",
        identity_files=(HOME / "a key", HOME / ".ssh/b", HOME / "d"),
        identities_are_default=False,
        certificate_files=(HOME / "c-cert.pub",),
        identities_only=True,
        agent_socket=str(HOME / "agent"),
        proxy_jump="gate",
        proxy_command="nc worker-0.cluster 2222",
        user_known_hosts=(HOME / "known", Path("/dev/null")),
        global_known_hosts=(),
        host_key_alias="w",
        strict_host_key_checking=StrictHostKeyChecking.ACCEPT_NEW,
        hash_known_hosts=True,
        connect_timeout_s=3.0,
        chooses=frozenset({"KexAlgorithms", "ServerAliveInterval"}),
    )


def test_the_hostfile_goes_before_ssh_config(config: Path) -> None:
    text = "Match user alice\n  HostName other\nHost worker-0\n  Port 2222\n  User bob\n"
    found = read(config, text, Host("worker-0", (0,), user="alice", port=3333))
    assert (found.user, found.port, found.hostname) == ("alice", 3333, "other")


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("yes", StrictHostKeyChecking.YES),
        ("ask", StrictHostKeyChecking.YES),
        ("accept-new", StrictHostKeyChecking.ACCEPT_NEW),
        ("no", StrictHostKeyChecking.NO),
        ("OFF", StrictHostKeyChecking.NO),
    ],
)
def test_strict_host_key_checking(config: Path, value: str, meant: StrictHostKeyChecking) -> None:
    text = f"Host other\n  StrictHostKeyChecking no\nHost worker-0\n  StrictHostKeyChecking {value}\n"
    found = read(config, text)
    assert found.strict_host_key_checking is meant


def test_included_files_count(config: Path, tmp_path: Path) -> None:
    (tmp_path / "extra").write_text("StrictHostKeyChecking no\nPort 7\n")
    found = read(config, f"Include {tmp_path}/extra\nPort 8\n")
    assert (found.port, found.strict_host_key_checking) == (7, StrictHostKeyChecking.NO)


@pytest.mark.parametrize(
    ("value", "socket"),
    [("none", None), ("SSH_AUTH_SOCK", "/env"), ("$OTHER", "/other"), ("${OTHER}", "/other"), ("/x", "/x")],
)
def test_identity_agent(
    config: Path, value: str, socket: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/env")
    monkeypatch.setenv("OTHER", "/other")
    assert read(config, f"IdentityAgent {value}\n").agent_socket == socket
    assert read(config, "").agent_socket == "/env"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("HostName h", "h"),
        ("HostName h\nPort 2222", "[h]:2222"),
        ("HostName h\nPort 2222\nHostKeyAlias a", "a"),
    ],
)
def test_the_name_in_known_hosts(config: Path, text: str, name: str) -> None:
    assert read(config, text).known_hosts_name == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Host *\n  Port many\n", "line 2: Invalid Port integer value: many"),
        ("Port\n", "line 1: Missing Port value"),
        (
            "\nStrictHostKeyChecking maybe\n",
            "line 2: unsupported StrictHostKeyChecking value: maybe",
        ),
    ],
)
def test_a_bad_line_is_named(config: Path, text: str, why: str) -> None:
    with pytest.raises(BackendError) as caught:
        read(config, text)
    assert str(caught.value) == f"worker-0: bad ssh_config: {config} {why}"
    assert caught.value.hint == "correct that line; then try: ssh -G worker-0"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nothing"
    with pytest.raises(BackendError) as caught:
        SshConfig(path).lookup(Host("worker-0", (0,)))
    assert str(caught.value) == f"worker-0: cannot read ssh_config {path}: no such file or directory"
    assert caught.value.hint == "name a file that exists and is readable"


def test_a_binary_file_is_named(config: Path) -> None:
    config.write_bytes(b"Port \xff\n")
    with pytest.raises(BackendError) as caught:
        SshConfig(config).lookup(Host("worker-0", (0,)))
    assert str(caught.value) == f"worker-0: cannot read ssh_config {config}: not UTF-8 text"


@pytest.mark.parametrize(
    ("spec", "hop"),
    [
        ("gate", Host("gate", ())),
        ("bob@gate:2222", Host("gate", (), "bob", 2222)),
        ("ssh://bob@gate:2222/", Host("gate", (), "bob", 2222)),
        ("[::1]:22", Host("::1", (), None, 22)),
        ("bob@corp@gate", None),
        ("", None),
        ("gate:ssh", None),
    ],
)
def test_jump_hosts(spec: str, hop: Host | None) -> None:
    if hop is None:
        with pytest.raises(ValueError, match="is not a jump host"):
            parse_jump(spec)
    else:
        assert parse_jump(spec) == hop


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's ssh")
def test_openssh_reads_the_same(config: Path) -> None:
    text = (
        "Host worker-*\n HostName %h.cluster\n User bob\n"
        " StrictHostKeyChecking accept-new\n ConnectTimeout 3\n"
        "Match host *.cluster\n Port 2222\nMatch final host *.cluster\n HostKeyAlias w\nHost *\n User eve\n"
    )
    found = read(config, text)
    printed = subprocess.run(["ssh", "-G", "-F", str(config), "worker-0"], capture_output=True, text=True)
    theirs = dict(line.split(" ", 1) for line in printed.stdout.splitlines() if " " in line)
    assert (found.hostname, str(found.port), found.user) == (
        theirs["hostname"],
        theirs["port"],
        theirs["user"],
    )
    assert found.host_key_alias == theirs["hostkeyalias"]
    assert found.strict_host_key_checking.value == theirs["stricthostkeychecking"]
    assert str(int(found.connect_timeout_s or 0)) == theirs["connecttimeout"]
