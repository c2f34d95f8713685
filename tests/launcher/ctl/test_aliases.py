"""`dslaunchctl install-aliases`: DeepSpeed's names for our commands, and nothing written over."""

import os
import subprocess
from pathlib import Path

import pytest

from dslaunch.launcher.ctl.aliases import install_aliases
from dslaunch.launcher.errors import UsageError


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Stand-ins that print what they are called with."""
    folder = tmp_path / "pro grams"
    folder.mkdir()
    for name in ("dslaunch", "dslaunchctl"):
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s" {name}; printf " <%s>" "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("argv", "called"),
    [
        (("deepspeed", "--num_gpus", "2", "a b.py", "$x"), "dslaunch <--num_gpus> <2> <a b.py> <$x>"),
        (("ds", "x.py"), "dslaunch <x.py>"),
        (("ds_report",), "dslaunchctl <report>"),
        (("ds_ssh", "ls", "-l"), "dslaunchctl <exec> <--> <ls> <-l>"),
        (("ds_ssh", "-f", "my hosts", "ls"), "dslaunchctl <exec> <--hostfile> <my hosts> <--> <ls>"),
    ],
)
def test_every_alias(programs: Path, bin_folder: Path, argv: tuple[str, ...], called: str) -> None:
    install_aliases(bin_folder, programs)
    output = subprocess.check_output([bin_folder / argv[0], *argv[1:]], text=True)
    assert output.removesuffix(" <>") == called


def test_nothing_is_written_over(programs: Path, bin_folder: Path) -> None:
    (bin_folder / "ds_ssh").write_text("mine")
    with pytest.raises(UsageError, match="ds_ssh exists already"):
        install_aliases(bin_folder, programs)
    assert os.listdir(bin_folder) == ["ds_ssh"]


def test_a_folder_that_is_not_there(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        install_aliases(tmp_path / "none", programs)
