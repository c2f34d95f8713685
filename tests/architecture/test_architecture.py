"""The rules of ARCHITECTURE.md and of the house that a machine can hold."""

import ast
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dslaunch.launcher.render import AGENT_MODULES, SURVEY_MODULES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/dslaunch"
ROOMS = sorted(path.name for path in SOURCE.iterdir() if path.is_symlink())
MAX_LINES = 400
AGENT_IMPORTS = {
    *("__future__", "binascii", "collections", "contextlib", "ctypes", "dataclasses", "enum", "fcntl"),
    *("functools", "json", "os", "platform", "select", "selectors", "signal", "socket", "stat", "struct"),
    *("subprocess", "sys", "threading", "time", "typing", "zlib"),
}  # fmt: skip
HEAVY = {"torch", "asyncssh", "paramiko", "numpy", "rich", "asyncio", "yaml", "dslaunch.engine"}


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def test_every_room_is_a_relative_link_to_the_top_level() -> None:
    assert ROOMS == ["compat", "engine", "hostfile", "launcher", "runner_backends"]
    assert all((SOURCE / room).readlink() == Path("../..") / room for room in ROOMS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_what_a_module_is(path: Path) -> None:
    if "compat/path" in str(path):
        return  # DeepSpeed's names
    assert path.stem not in ("utils", "util", "helpers", "common", "constants", "misc")


def imports(path: Path) -> set[str]:
    """Whole names of what a module imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("module", AGENT_MODULES)
def test_the_agent_imports_the_standard_library_and_what_travels_with_it(module: str) -> None:
    for name in imports(ROOT / module):
        if name.startswith("dslaunch."):
            assert name in names_of(AGENT_MODULES) | {"dslaunch.launcher.agent"}
        else:
            assert name.partition(".")[0] in AGENT_IMPORTS


@pytest.mark.parametrize("module", SURVEY_MODULES)
def test_the_surveyor_imports_the_standard_library_and_what_travels_with_it(module: str) -> None:
    for name in imports(ROOT / module) - {"pynvml"}:  # which is used where it is installed
        if name.startswith("dslaunch."):
            assert name in names_of(SURVEY_MODULES) | {"dslaunch.launcher.survey"}
        else:
            assert name.partition(".")[0] in sys.stdlib_module_names


def names_of(modules: tuple[str, ...]) -> set[str]:
    return {f"dslaunch.{name.removesuffix('.py').replace('/', '.')}" for name in modules}


def test_all_of_the_agent_travels() -> None:
    agent = {f"launcher/agent/{path.name}" for path in (ROOT / "launcher/agent").glob("*.py")}
    assert agent - set(AGENT_MODULES) == {"launcher/agent/__init__.py"}


@pytest.mark.parametrize("room", ["hostfile"])
def test_pure_rooms_do_no_io(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        assert not imports(path) & {"os", "pathlib", "subprocess", "asyncio", "socket", "sys"}


def loaded_by(*argv: str) -> set[str]:
    """Modules in sys.modules after the command line was handled."""
    code = f"""
import sys
from dslaunch.launcher.cli import main
sys.argv = {["dslaunch", *argv]!r}
try:
    main()
finally:
    print("\\n" + "\\n".join(sys.modules), file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    env = {"PYTHONPATH": str(ROOT / "src"), "HOME": str(ROOT)}
    result = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stderr.split("\n"))


def test_help_loads_nothing_heavy() -> None:
    assert not loaded_by("--help") & HEAVY


def test_a_dry_run_loads_no_ssh_and_no_torch() -> None:
    loaded = loaded_by("--no_python", "--dry_run=json", "true")
    assert not loaded & {"torch", "asyncssh", "paramiko", "numpy", "yaml", "dslaunch.engine"}


def test_only_the_console_and_the_entry_points_print() -> None:
    may_print = {"launcher/cli.py", "launcher/launch.py", "launcher/dry_run.py", "launcher/agent/main.py"}
    for room in ("hostfile", "launcher", "runner_backends"):
        for path in (ROOT / room).rglob("*.py"):
            calls = [
                node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
            ]
            prints = any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
            assert not prints or str(path.relative_to(ROOT)) in may_print, path


def run_tool(*argv: str) -> str:
    """Output of a tool of the environment the tests run in; it must succeed."""
    tool = Path(sysconfig.get_path("scripts")) / argv[0]
    result = subprocess.run([tool, *argv[1:]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_rooms_import_only_along_the_arrows() -> None:
    assert re.search(r"Contracts: \d+ kept, 0 broken", run_tool("lint-imports"))


def test_mypy_looks_at_everything() -> None:
    found = re.search(r"no issues found in (\d+) source files", run_tool("mypy"))
    assert found
    assert int(found[1]) > 30
