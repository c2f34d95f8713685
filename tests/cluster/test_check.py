"""`dslaunchctl check` on several hosts: nothing on healthy ones, and every fault that was planted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from launch_site import ROOT, Site
from netcluster import Cluster

CTL = (sys.executable, "-c", "import sys; from dslaunch.launcher.ctl.cli import main; sys.exit(main())")
BUSY_XML = """<nvidia_smi_log><gpu><product_name>H200</product_name>
<fb_memory_usage><total>143771 MiB</total><used>%d MiB</used></fb_memory_usage>
<processes><process_info><pid>4711</pid><process_name>python old.py</process_name>
<used_memory>%d MiB</used_memory></process_info></processes></gpu>
<gpu><product_name>H200</product_name>
<fb_memory_usage><total>143771 MiB</total><used>0 MiB</used></fb_memory_usage></gpu></nvidia_smi_log>"""
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 30;
    return failed;
}
"""


def check(site: Site, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    env |= {"HOME": str(site.folder), "PYTHONPATH": str(ROOT / "src")}
    command = [
        *(*CTL, "check", "--hostfile", str(site.hostfile), "--ssh_config", str(site.ssh_config)),
        *("--launcher", site.launcher, *argv),
    ]
    return subprocess.run(command, cwd=site.folder, env=env, capture_output=True, text=True, timeout=120)


def problems(ran: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines between the table and the summary."""
    assert ran.stderr == ""
    return [line for line in ran.stdout.splitlines()[1:-1] if ": " in line and " -> " in line]


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    (tmp_path / "train.py").write_text("print()\n")
    return Site(cluster.hostfile, cluster.ssh_config, tmp_path, f"check-{os.getpid()}", "ssh")


@pytest.fixture
def worker_1(cluster: Cluster) -> Iterator[str]:
    """A host that may be broken: it is booted anew afterwards."""
    yield "worker-1"
    cluster.boot("worker-1")


def on(cluster: Cluster, host: str, *argv: str) -> None:
    subprocess.run(cluster.exec_argv(host, argv), check=True, timeout=30, capture_output=True)


def with_pythons(site: Site, **preambles: str) -> Site:
    """Hosts, by their names without the dash, whose Python is started by these lines of shell."""
    lines = []
    for host, preamble in preambles.items():
        name = host.replace("_", "-")
        python = site.folder / f"python-{name}"
        python.write_text(f'#!/bin/sh\n{preamble}\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        lines.append(f"{name} slots=2 python={python}\n")
    hostfile = site.folder / "hosts"
    hostfile.write_text("".join(lines))
    return replace(site, hostfile=hostfile)


def nvidia_smi(folder: Path, used_mebibytes: int) -> str:
    """A folder with a tool that knows two devices, one of them used by a process."""
    folder.mkdir()
    tool = folder / "nvidia-smi"
    (folder / "xml").write_text(BUSY_XML % (used_mebibytes, used_mebibytes))
    tool.write_text(
        f'#!/bin/sh\n[ "$1" = -L ] && printf "GPU 0: H200\\nGPU 1: H200\\n" || cat {folder}/xml\n'
    )
    tool.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("launcher", ["ssh", "openssh", "pdsh"])
def test_healthy_hosts_have_no_problems(site: Site, cluster: Cluster, launcher: str) -> None:
    if launcher == "pdsh" and shutil.which("pdsh") is None:
        pytest.skip("pdsh is not installed")
    ran = check(replace(site, launcher=launcher), "train.py")
    assert (ran.returncode, problems(ran)) == (0, [])
    assert ran.stdout.splitlines()[1].startswith("worker-[0-1]  ")
    assert ran.stdout.splitlines()[-1].endswith(": nothing found")
    assert nothing_runs(cluster), "surveyors end with their check"


def nothing_runs(cluster: Cluster) -> bool:
    """Whether the hosts are left to themselves within 5 s."""
    deadline = time.monotonic() + 5
    while cluster.user_procs() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not cluster.user_procs()


def test_versions_limits_devices_and_room(site: Site, cluster: Cluster, worker_1: str) -> None:
    package = site.folder / "fake/torch-2.12.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1\n")
    full = site.folder / "full"
    full.mkdir()
    on(cluster, worker_1, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(full))
    on(cluster, worker_1, "sh", "-c", f"head -c 1M /dev/zero >{full}/data || true")
    idle, busy = nvidia_smi(site.folder / "idle", 0), nvidia_smi(site.folder / "busy", 40960)
    broken = with_pythons(
        site,
        worker_0=f"ulimit -l 1024; export PATH={idle}:$PATH",
        worker_1=f"ulimit -l 64; export PATH={busy}:$PATH TMPDIR={full}\n"
        f"export PYTHONPATH={site.folder}/fake:$PYTHONPATH",
    )
    ran = check(broken, "train.py")
    torch = next(line for line in problems(ran) if "torch" in line)
    assert torch.startswith("error: worker-1: torch 2.12.1, 1 other has 2.")
    assert torch.partition(" -> ")[2].startswith(f"{sys.executable} -m pip install torch==2.")
    assert [line for line in problems(ran) if line != torch] == [
        "error: worker-1: device 0 is in use, 40 GiB of 140.4 GiB: pid 4711 (python old.py) -> "
        "end it, if it is yours: ssh worker-1 kill 4711",
        f"error: worker-1: {full} (temporary files) has 0 bytes of 1 MiB left -> "
        "delete something, or choose another folder: TMPDIR",
        "warning: worker-1: may lock 64 KiB of memory, most hosts have 1 MiB -> "
        '"* - memlock unlimited" in /etc/security/limits.d/, LimitMEMLOCK=infinity for sshd and slurmd, '
        "--ulimit memlock=-1 for docker",
    ]
    assert ran.returncode == 1


def test_a_firewall_a_name_and_a_folder(site: Site, cluster: Cluster, worker_1: str) -> None:
    hosts = site.folder.parent / f"{site.folder.name}.hosts"
    hosts.write_text("127.0.1.1 worker-0\n" + Path("/etc/hosts").read_text())
    on(cluster, worker_1, "mount", "--bind", str(hosts), "/etc/hosts")
    on(cluster, worker_1, "mount", "-t", "tmpfs", "tmpfs", str(site.folder.parent))
    rule = ("rule", "{}", "ipproto", "tcp", "dport", "29500", "prohibit")
    on(cluster, worker_1, "ip", *(word.format("add") for word in rule))
    try:
        ran = check(site, "train.py")
        dropped = site.run("train.py", flags=["--drop_bad"])
    finally:
        on(cluster, worker_1, "ip", *(word.format("del") for word in rule))
    assert problems(ran) == [
        f"error: worker-1: folder {site.folder} is not there -> "
        "create or mount it on this host, or choose another with --cwd",
        f"error: worker-1: does not reach worker-0 ({cluster.ip('worker-0')}) at port 29500: "
        "Permission denied -> open port 29500 in the firewall, or choose another: --master_port",
        "warning: worker-1: resolves worker-0 to 127.0.1.1, which is itself -> "
        "in its /etc/hosts, give worker-0 the address that others reach it by",
    ]
    assert ran.returncode == 1
    assert (dropped.returncode, sorted(dropped.stdout.split())) == (0, ["[worker-0:0]", "[worker-0:1]"])


def test_a_clock_that_is_wrong(site: Site) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build a wrong clock with")
    shim = site.folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(shim), "-ldl"]
    subprocess.run(command, input=CLOCK, text=True, check=True)
    ran = check(with_pythons(site, worker_0="", worker_1=f"export LD_PRELOAD={shim}"))
    (said,) = problems(ran)  # how far is known to half of the way's time, and this machine may be busy
    assert re.fullmatch(
        r"warning: worker-1: its clock is (29|30)\.\d s ahead of the others -> "
        r"start an NTP client on it: timedatectl set-ntp true; chronyc makestep",
        said,
    )


def test_a_host_that_is_cut_off_and_one_that_is_down(site: Site, cluster: Cluster, worker_1: str) -> None:
    cluster.cut("worker-1", "worker-0")
    ran = check(site)
    assert nothing_runs(cluster), "also where doors wait for who never comes"
    assert problems(ran) == [
        f"error: worker-1: does not reach worker-0 ({cluster.ip('worker-0')}): no answer -> "
        "look for a firewall or a missing route; or name an address that all reach: --master_addr"
    ]
    cluster.kill("worker-1")
    ran = check(site, "--json")
    assert ran.returncode == 1
    assert '"what": "connection refused' in ran.stdout.lower()


def test_the_host_with_slow_links_is_named(netns_possible: None, tmp_path: Path) -> None:
    with Cluster(f"l{os.getpid()}") as own:
        own.up(3, slots=1)  # an odd number: one sits out in each round
        limit = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "200mbit", "burst", "64kbit")
        limited = subprocess.run(own.exec_argv("worker-2", (*limit, "latency", "100ms")), capture_output=True)
        if limited.returncode != 0:
            pytest.skip(f"no slow link to be had: {limited.stderr.decode()}")
        ran = check(Site(own.hostfile, own.ssh_config, tmp_path, "links", "ssh"), "--fast", "--nccl")
    (said,) = problems(ran)
    assert said.startswith("warning: worker-2: all-reduces run at 0.")
    assert "all-reduce over gloo, 3 pairs: " in ran.stdout
    assert ran.returncode == 1
