"""Building: several processes at once, compilers that fail or lack, and what is said then."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rule_cases import RULES, Data

from dslaunch.engine.ops import artifacts, backends, build, cuda_driver, nvrtc
from dslaunch.engine.ops.cpu_library import CpuLibrary
from dslaunch.engine.ops.step import reference_step, step_
from dslaunch.engine.ops.toolchain import BuildError, NoCompilerError

# Compiles nothing, and takes its time: the output of the last call becomes the "library".
SLOW_COMPILER = """#!/bin/sh
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
for i in 1 2 3 4; do echo part $i; done > "$out"
"""


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DSLAUNCH_CACHE", str(folder))
    return folder


def test_a_prepared_library_is_found_and_not_built(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.build_cpu()
    assert path.parent == cache / "ops"
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    assert build.build_cpu() == path


def test_many_processes_build_at_once_and_leave_one_whole_file(empty_cache: Path, tmp_path: Path) -> None:
    compiler = script(tmp_path / "slow", SLOW_COMPILER)
    code = "from dslaunch.engine.ops.build import build_cpu; print(build_cpu().read_text())"
    environ = {**os.environ, "CXX": compiler, "DSLAUNCH_CACHE": str(empty_cache)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = {process.communicate(timeout=100)[0] for process in started}
    assert said == {"part 1\npart 2\npart 3\npart 4\n\n"}
    assert [path.name for path in (empty_cache / "ops").iterdir()] == [build.cpu_name()]


def test_a_failed_build_shows_the_compilers_words(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "CXX", script(tmp_path / "c++", "#!/bin/sh\necho 'cpu_isa.cpp:1: error: no such luck' >&2\nexit 1\n")
    )
    with pytest.raises(BuildError) as caught:
        build.build_cpu()
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"the kernels do not compile: {tmp_path}/c++ -std=c++17")
    assert second == "cpu_isa.cpp:1: error: no such luck"
    assert not list(empty_cache.rglob("*"))


def test_a_long_complaint_is_cut(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(tmp_path / "c++", "#!/bin/sh\nseq 1000\nexit 1\n"))
    with pytest.raises(BuildError, match=r"\n40\n\.\.\. 960 more lines$"):
        build.build_cpu()


def test_without_a_compiler_a_hint(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NoCompilerError) as caught:
        build.build_cpu()
    assert str(caught.value) == (
        "no C++ compiler found\nhint: install g++ (Debian: apt install g++), or name one: CXX=..."
    )


def test_without_kernels_plain_torch_steps_and_one_line_says_what_that_costs(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    backends.forget()
    try:
        with caplog.at_level(logging.WARNING, "dslaunch.engine"):
            shard, twin = (
                Data(RULES["adamw"](1), (10,), (torch.float32, None), torch.device("cpu")) for _ in "ab"
            )
            twin.shards[0].master.copy_(shard.shards[0].master)
            step_(RULES["adamw"](1), shard.shards)
            step_(RULES["adamw"](1), shard.shards)
        for _ in range(2):
            reference_step(RULES["adamw"](1), twin.shards)
    finally:
        backends.forget()
    assert torch.equal(shard.shards[0].master, twin.shards[0].master)
    assert [record.getMessage() for record in caplog.records] == [
        "no kernels for cpu, plain torch instead: optimizer steps on the CPU take 1.2 times (fp32) to 4 times"
        " (bf16) as long (cannot run /nonexistent/compiler: No such file or directory)"
    ]


def test_plain_torch_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSLAUNCH_OPS", "torch")
    assert backends.of(torch.device("cpu")) is None


def test_devices_of_other_kinds_use_plain_torch() -> None:
    assert backends.of(torch.device("meta")) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_kernels_for_gpus_ask_for_a_driver() -> None:
    with pytest.raises(BuildError, match=r"^no CUDA driver: libcuda\.so\.1: "):
        cuda_driver.driver()


def test_where_neither_nvcc_nor_nvrtc_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "Nvrtc", _not_found)
    with pytest.raises(NoCompilerError) as caught:
        nvrtc.nvrtc.__wrapped__()  # the found one is kept
    assert str(caught.value) == "neither nvcc nor NVRTC found\nhint: pip install nvidia-cuda-nvrtc"


def _not_found(path: str) -> None:
    raise OSError(f"{path}: not found")


def test_a_damaged_library_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    with pytest.raises(BuildError, match=f"the kernels do not load: {broken}: "):
        CpuLibrary(broken)


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSLAUNCH_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = artifacts.publish("x.so", b"content")
    assert path.read_bytes() == b"content"
    assert path.parent.name.startswith("dslaunch-ops-")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DSLAUNCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/ops"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/dslaunch/ops"),
        ({"HOME": "/c"}, "/c/.cache/dslaunch/ops"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSLAUNCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert str(artifacts.cache_folder()) == expected


def test_the_command_builds_and_names_what_there_is(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "nvcc", lambda: None)
    assert build.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(cache / "ops" / build.cpu_name()),
        "no nvcc: CUDA kernels will be compiled by NVRTC at their first use, or now with --arch",
    ]
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    assert build.main([str(cache / "elsewhere")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: cannot run /nonexistent/compiler: No such file or directory"
    )


def test_dslaunchctl_builds_for_an_architecture(empty_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script(
        tmp_path / "bin/nvcc", '#!/bin/sh\nfor last; do :; done\necho "$@" >> "$0.log"; echo x > "$last"\n'
    )
    program = str(Path(sys.executable).with_name("dslaunchctl"))
    command = [program, "build", "--arch=9.0", "--arch", "sm_100"]
    environ = {
        **os.environ,
        "CUDA_HOME": str(tmp_path),
        "CXX": script(tmp_path / "cxx", SLOW_COMPILER),
        "DSLAUNCH_CACHE": str(empty_cache),
    }
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    built = {path.name.split("-")[0] for path in map(Path, ran.stdout.splitlines())}
    assert built == {"cpu", *build.CUDA_MODULES}
    said = (tmp_path / "bin/nvcc.log").read_text()
    assert said.count("arch=compute_90,code=[sm_90,compute_90]") == len(build.CUDA_MODULES)
    assert said.count("arch=compute_100,code=sm_100") == len(build.CUDA_MODULES)
    wrong = subprocess.run(
        [*command[:-1], "ninety"], env=environ, capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "expects an architecture such as 9.0 but got 'ninety'" in wrong.stderr


@pytest.mark.parametrize(
    ("environ", "starts"),
    [
        ({"RANK": "4", "LOCAL_RANK": "0"}, True),
        ({"RANK": "5", "LOCAL_RANK": "1"}, False),
        ({}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "DSLAUNCH_OPS": "torch"}, False),
    ],
)
def test_the_first_rank_of_a_node_builds_while_it_imports(
    environ: dict[str, str], starts: bool, empty_cache: Path, tmp_path: Path
) -> None:
    """The compiler runs without torch having been asked for; the first use waits for what it makes."""
    code = (
        "import sys, dslaunch.engine\n"
        "from dslaunch.engine.ops import ahead, artifacts, build\n"
        "assert 'torch' not in sys.modules\n"
        "print(ahead._started is not None)\n"
        "ahead.finish()\n"
        "print(artifacts.find(build.cpu_name()) is not None)\n"
        "print(ahead.start({'RANK': '0', 'LOCAL_RANK': '0'}))\n"
    )
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "DSLAUNCH_OPS")}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={
            **kept,
            **environ,
            "DSLAUNCH_CACHE": str(empty_cache),
            "CXX": script(tmp_path / "cxx", SLOW_COMPILER),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [str(starts), str(starts), str(not starts)]
