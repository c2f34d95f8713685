"""Jobs of gloo ranks on several hosts that hang: the hang detector names who holds them up."""

import os
import time
from pathlib import Path

from launch_site import Site, wait_until_up
from netcluster import Cluster

from dslaunch.launcher.errors import EXIT_HUNG

SCRIPT = str(Path(__file__).with_name("all_reduce.py"))


def test_a_frozen_host_is_named(cluster: Cluster, tmp_path: Path) -> None:
    environ = {"OMP_NUM_THREADS": "1"}
    site = Site(cluster.hostfile, cluster.ssh_config, tmp_path, f"frozen-{os.getpid()}", "ssh", environ)
    flags = ["--hang_timeout=3", "--lease=60", "--grace=1", f"--run_dir={tmp_path / 'a run'}"]
    with site.start(SCRIPT, "never", "0", flags=flags) as process:
        wait_until_up(process)
        cluster.freeze("worker-1")
        found = tmp_path / "a run/census/hang.txt"
        while not found.exists() and process.poll() is None:
            time.sleep(0.05)
        cluster.thaw("worker-1")
        _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_HUNG, err
    said = err.partition("error: ")[2].splitlines()
    assert said[1].startswith("dslaunch:     ranks 0-1 (worker-0) in all_reduce all_reduce.py:")
    assert said[2] == "dslaunch:     ranks 2-3 (worker-1) on a host that does not answer  <- the odd ones"
    assert site.gone_within(5) == []
