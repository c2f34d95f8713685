"""The guide, carried out: its files written, its commands typed on a machine that reaches two hosts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from launch_site import ROOT
from netcluster import Cluster

_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SMALLER = (("slots=8", "slots=1"), ("--num_gpus 8", "--num_gpus 1"), ("--num_gpus=8", "--num_gpus=1"))
"""Eight ranks on each of these hosts would take the tests' machine a minute."""


class Block(NamedTuple):
    """A fenced block: its language, the file it is, "" for none, and its text."""

    language: str
    title: str
    text: str


def blocks(page: str = "docs/guide.md") -> Iterator[Block]:
    for language, title, text in _FENCE.findall((ROOT / page).read_text()):
        yield Block(language, title, text)


def smaller(text: str) -> str:
    for large, small in SMALLER:
        text = text.replace(large, small)
    return text


def files(folder: Path) -> dict[str, str]:
    """The guide's files, written into the folder."""
    found = {block.title: smaller(block.text) for block in blocks() if block.title}
    for name, text in found.items():
        (folder / name).write_text(text)
    return found


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT / "src"),
        "DSLAUNCH_JOBS_DIR": str(folder / "jobs"),
        "DSLAUNCH_OPS": "torch",  # or the first rank builds kernels into this new home
        "OMP_NUM_THREADS": "1",
    }


def test_the_guide_can_be_followed(cluster: Cluster, tmp_path: Path) -> None:
    files(tmp_path)
    said: dict[str, str] = {}
    for block in blocks():
        for command in block.text.splitlines() if block.language == "sh" else ():
            ran = subprocess.run(
                cluster.run_argv(["bash", "-c", smaller(command)]),
                cwd=tmp_path,
                env=environment(tmp_path),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
            said[command] = ran.stdout
            if "--detach" in command:
                _wait_for(tmp_path / "runs/2/verdict.json")
    resumed = next(text for command, text in said.items() if "--run_dir runs/1 " in command)
    assert "step 40 loss" in resumed, "the second run goes on from the checkpoint of the first"
    assert (tmp_path / "runs/1/view.html").stat().st_size > 5000
    assert json.loads((tmp_path / "runs/2/verdict.json").read_text())["exit_code"] == 0


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_pods_of_the_manifest_train_together(cluster: Cluster, tmp_path: Path) -> None:
    pod = _pod(yaml.safe_load(files(tmp_path)["jobset.yaml"]))
    (container,) = pod["containers"]
    told = {one["name"]: one.get("value", "0123456789abcdef" * 2) for one in container["env"]}
    argv = [*container["command"], *container["args"]]
    pods = []
    for index in (0, 1):
        env = {
            **environment(tmp_path),
            **told,
            "MASTER_ADDR": cluster.ip("worker-0"),
            "JOB_COMPLETION_INDEX": index,
        }
        words = [f"{name}={value}" for name, value in env.items()]
        command = cluster.exec_argv(f"worker-{index}", ["env", "-i", "-C", str(tmp_path), *words, *argv])
        pods.append(
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    ends = [(*one.communicate(timeout=120), one.returncode) for one in pods]
    assert [code for _, _, code in ends] == [0, 0], ends
    assert "step 30 loss" in ends[0][0]
    ports = [one["containerPort"] for one in container["ports"]]
    assert ports == [29500, 29501]


def _pod(jobset: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod of a manifest whose pods are indexed, as many as the command line says."""
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (nodes,) = jobset["spec"]["replicatedJobs"]
    job = nodes["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    pod: Mapping[str, Any] = job["template"]["spec"]
    assert f"--num_nodes={job['parallelism']}" in pod["containers"][0]["args"]
    first = f"{jobset['metadata']['name']}-{nodes['name']}-0-0.{jobset['metadata']['name']}"
    assert pod["containers"][0]["env"][0]["value"] == first
    return pod


def test_the_batch_script_runs_in_its_allocation(tmp_path: Path) -> None:
    script = files(tmp_path)["job.sbatch"]
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", script, re.MULTILINE))
    script = script.replace("source /opt/venv/bin/activate\n", "").replace(
        "dslaunch ", "dslaunch --dry_run=json ", 1
    )
    allocation = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "worker-[0-1]",
        "SLURM_JOB_NUM_NODES": asked["nodes"],
        "SLURM_GPUS_ON_NODE": asked["gpus-per-node"],
    }
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**environment(tmp_path), **allocation},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    plan = json.loads(ran.stdout)
    assert [node["host"] for node in plan["nodes"]] == ["worker-0", "worker-1"]
    assert plan["world_size"] == 16
    assert plan["backend"] == ("slurm" if shutil.which("srun") else "ssh")


@pytest.mark.parametrize("page", ["docs/guide", "README"])
def test_a_translation_has_the_same_files_and_commands(page: str) -> None:
    def typed(name: str) -> list[tuple[str, str, list[str]]]:
        return [
            (
                block.language,
                block.title,
                [line.partition(" #")[0].rstrip() for line in block.text.splitlines()],
            )
            for block in blocks(name)
        ]

    assert typed(f"{page}.zh.md") == typed(f"{page}.md")


PAGES = [*sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")), Path("README.md")]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_command_of_the_pages_has_options_that_exist(page: Path) -> None:
    from dslaunch.launcher.cli import COMMAND
    from dslaunch.launcher.ctl.cli import _dslaunchctl as companions

    known = {name for option in COMMAND.params for name in option.opts}
    for line in re.findall(r"^(?:\$ )?(dslaunch(?:ctl)? .*)$", (ROOT / page).read_text(), re.MULTILINE):
        words = shlex.split(line, comments=True)
        own = known
        if words[0] == "dslaunchctl":
            command: click.Command = companions
            while isinstance(command, click.Group):
                words.pop(0)
                assert words[0] in command.commands, line
                command = command.commands[words[0]]
            own = {name for option in command.params for name in option.opts}
        for word in words[1:]:
            if not word.startswith("-") and own is known and word.endswith(".py"):
                break  # what follows belongs to the script
            if word == "--":
                break
            if word.startswith("--"):
                assert word.partition("=")[0].replace("-", "_").replace("__", "--", 1) in own, line
