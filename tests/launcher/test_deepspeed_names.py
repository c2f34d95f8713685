"""Functions of DeepSpeed's launcher that scripts call."""

import subprocess
import sys
from pathlib import Path

import pytest

from dslaunch.launcher.deepspeed_names import (
    encode_world_info,
    fetch_hostfile,
    main,
    parse_hostfile_lines,
    parse_inclusion_exclusion,
    parse_resource_filter,
)

POOL = {"a": 2, "b": 3}


def test_pools_are_filtered() -> None:
    assert parse_inclusion_exclusion(POOL, "", "") == {"a": [0, 1], "b": [0, 1, 2]}
    assert parse_inclusion_exclusion(POOL, "b:2,0", "") == {"b": [0, 2]}
    assert parse_inclusion_exclusion(POOL, "a@b:1", "") == {"a": [0, 1], "b": [1]}
    assert parse_inclusion_exclusion(POOL, "", "a@b:1") == {"b": [0, 2]}
    assert parse_resource_filter({"a": [4, 6]}, include_str="a:6") == {"a": [6]}


def test_nothing_may_be_left() -> None:
    assert parse_inclusion_exclusion(POOL, "", "a@b:0,1,2") == {}
    assert parse_resource_filter({}) == {}


@pytest.mark.parametrize(
    ("inclusion", "exclusion"), [("a", "b"), ("c", ""), ("", "c"), ("b:3", ""), ("", "b:3")]
)
def test_what_is_not_there_is_a_value_error(inclusion: str, exclusion: str) -> None:
    with pytest.raises(ValueError, match=r"--include|--exclude|exclude each other"):
        parse_inclusion_exclusion(POOL, inclusion, exclusion)


def test_hostfiles(tmp_path: Path) -> None:
    assert parse_hostfile_lines(["# two", "", "a slots=2", "b slots=1"]) == {"a": 2, "b": 1}
    with pytest.raises(ValueError, match="hostfile:2"):
        parse_hostfile_lines(["a slots=2", "a slots=2"])
    assert fetch_hostfile(str(tmp_path / "none")) is None
    (tmp_path / "hosts").write_text("a slots=2\n")
    assert fetch_hostfile(str(tmp_path / "hosts")) == {"a": 2}


def test_world_info_is_one_word() -> None:
    assert encode_world_info({"a": [0, 1]}) == "eyJhIjogWzAsIDFdfQ=="


@pytest.mark.parametrize("words", ["--num_nodes 1 -i localhost x.py", "--num_gpus x y.py", ""])
def test_main_raises_what_is_wrong_with_its_words(words: str) -> None:
    with pytest.raises(ValueError, match="hint: "):
        main(words.split())


def test_main_launches(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print('rank', os.environ['RANK']); raise SystemExit(3)")
    code = f"from dslaunch.launcher.deepspeed_names import main; main(['--accelerator=cpu', {str(script)!r}])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, "rank 0" in result.stdout) == (3, True), result.stderr
