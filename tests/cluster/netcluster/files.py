"""What a cluster keeps on disk: keys, SSH client and server settings, /etc/hosts, hostfile."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from netcluster.command import run, tool
from netcluster.layout import Layout

INIT_IDLE = "sleep 1000000"

_INIT = rf"""# PID 1 of a host: name it, give it its own /dev/shm, names and SSH settings, start sshd,
# then reap for ever what is orphaned here.
hostname "$HOST"
mount -t tmpfs -o size=50% tmpfs /dev/shm
[ -f /etc/ssh/ssh_config ] && mount --bind "$STATE/ssh_config" /etc/ssh/ssh_config
mount --bind "$STATE/$HOST/hosts" /etc/hosts
[ -f /etc/resolv.conf ] && mount --bind "$STATE/resolv.conf" /etc/resolv.conf
mkdir -p /run/sshd
trap '' HUP INT TERM
"$SSHD" -D -f "$STATE/$HOST/sshd_config" -E "$STATE/$HOST/sshd.log" &
while :; do {INIT_IDLE} & wait $!; done
"""


def write_files(layout: Layout, state_dir: Path, user: str) -> None:
    """Write every file of the cluster under `state_dir`, which holds layout.json and nothing else yet."""
    for host in layout.hosts:
        (state_dir / host).mkdir()
    _write_keys(layout, state_dir)
    (state_dir / "ssh_config").write_text(_ssh_config(layout, state_dir, user))
    (state_dir / "hosts").write_text(_etc_hosts(layout))
    (state_dir / "resolv.conf").write_text("options timeout:1 attempts:1\n")  # there is no DNS
    (state_dir / "hostfile").write_text(
        "".join(f"{host} slots={layout.num_slots}\n" for host in layout.workers)
    )
    (state_dir / "init.sh").write_text(_INIT)
    for host in layout.hosts:
        own_name = f"127.0.1.1 {host}\n" if layout.debian_hosts else ""
        (state_dir / host / "hosts").write_text(own_name + _etc_hosts(layout))
        (state_dir / host / "sshd_config").write_text(_sshd_config(state_dir, host))


def _write_keys(layout: Layout, state_dir: Path) -> None:
    owners = {"client": state_dir / "id_ed25519"}
    owners |= {host: state_dir / host / "host_key" for host in layout.hosts}
    keygen = tool("ssh-keygen")

    def make_key(owner: str) -> str:
        run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", owner, "-f", str(owners[owner])])
        return owners[owner].with_suffix(".pub").read_text()

    with ThreadPoolExecutor(8) as pool:
        public = dict(zip(owners, pool.map(make_key, owners), strict=True))
    (state_dir / "authorized_keys").write_text(public["client"])
    (state_dir / "known_hosts").write_text(
        "".join(f"{host},{layout.ip(host)} {public[host]}" for host in layout.hosts)
    )


def _ssh_config(layout: Layout, state_dir: Path, user: str) -> str:
    names = "".join(f"Host {host}\n  HostName {layout.ip(host)}\n\n" for host in layout.hosts)
    ips = " ".join(layout.ip(host) for host in layout.hosts)
    return f"""{names}Host {" ".join(layout.hosts)} {ips}
  User {user}
  IdentityFile {state_dir}/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile {state_dir}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  PreferredAuthentications publickey
  BatchMode yes
  GSSAPIAuthentication no
  ConnectTimeout 10
  LogLevel ERROR
"""


def _etc_hosts(layout: Layout) -> str:
    names = "".join(f"{layout.ip(host)} {host}\n" for host in layout.hosts)
    root = f"{layout.ip('root')} root-{layout.prefix} {socket.gethostname()}\n"
    return f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{root}{names}"


def _sshd_config(state_dir: Path, host: str) -> str:
    # SHLVL: Debian's bash reads ~/.bashrc under sshd at level 1, and what is in there is no host's business.
    # MaxStartups: sshd's own 10:30:100 drops connections at random where a test opens many at once.
    return f"""Port 22
AddressFamily inet
HostKey {state_dir}/{host}/host_key
PidFile {state_dir}/{host}/sshd.pid
AuthorizedKeysFile {state_dir}/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
PrintLastLog no
X11Forwarding no
MaxStartups 1000:30:2000
MaxSessions 100
Subsystem sftp internal-sftp
LogLevel VERBOSE
SetEnv SHLVL=1
"""
