"""`compat/path` as a script sees it: names, submodules, versions, refusals. In processes of their own."""

import os
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = ROOT / "compat/path"

# What Transformers, Accelerate, Lightning, TRL, PEFT and DeepSpeed's examples take, as `module:names`.
SURFACE = Path(__file__).with_name("surface.txt").read_text().splitlines()


def python(code: str) -> str:
    """The output of a script that runs as a rank does."""
    environ = {**os.environ, "PYTHONPATH": f"{PATH}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("[Gloo]"))  # as torch 2.9 has it say


def test_metadata_names_the_version() -> None:
    metadata = Distribution.at(next(PATH.glob("deepspeed-*.dist-info"))).metadata
    code = "import deepspeed, importlib.metadata as m; print(deepspeed.__version__, m.version('deepspeed'))"
    assert python(code).split() == [metadata["Version"]] * 2
    assert metadata["Name"] == "deepspeed"


def test_import_is_quick_and_leaves_cuda_alone() -> None:
    assert python("import sys, deepspeed; print('torch' in sys.modules)") == "False\n"


def test_the_surface_is_there() -> None:
    code = f"""
import importlib, pkgutil, deepspeed
for module in pkgutil.walk_packages(deepspeed.__path__, "deepspeed."):
    importlib.import_module(module.name)
for line in {SURFACE!r}:
    module, _, names = line.partition(":")
    parts = module.split(".")[1:]
    found = deepspeed
    for part in parts:
        found = getattr(found, part)
    for name in names.split():
        getattr(found, name)
import torch
assert not torch.cuda.is_initialized()
from dslaunch.engine import Engine
assert deepspeed.DeepSpeedEngine is deepspeed.runtime.engine.DeepSpeedEngine is Engine
assert deepspeed.utils.logging.logger is deepspeed.logger
print("ok")
"""
    assert python(code) == "ok\n"


def test_what_is_missing_says_so_when_used() -> None:
    code = """
import deepspeed
from deepspeed.pipe import PipelineModule
class Mine(PipelineModule):
    pass
assert not isinstance(3, PipelineModule)
for use in (Mine, lambda: deepspeed.init_inference(None)):
    try:
        use()
    except NotImplementedError as error:
        print(str(error).replace(chr(10), " "))
"""
    lines = python(code).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("deepspeed.pipe.PipelineModule is not part of dslaunch's engine hint: train")
    assert all(line.endswith("dslaunch --engine installed") for line in lines)


def test_a_script_trains_unchanged() -> None:
    code = """
import argparse, torch, deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import DeepSpeedCPUAdam
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args([])
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
config = {"train_batch_size": 2, "zero_optimization": {"stage": 2}, "gradient_clipping": 0}
optimizer = DeepSpeedCPUAdam(model.parameters(), lr=0.1, weight_decay=0.1)
oracle = torch.nn.Linear(4, 4)
oracle.load_state_dict(model.state_dict())
plain = torch.optim.AdamW(oracle.parameters(), lr=0.1, weight_decay=0.1)
engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, optimizer=optimizer, config=config)
assert isinstance(engine, deepspeed.DeepSpeedEngine)
x = torch.randn(2, 4).to(get_accelerator().current_device_name())
for _ in range(3):
    loss = engine(x).square().mean()
    engine.backward(loss)
    engine.step()
    plain.zero_grad()
    oracle(x.cpu()).square().mean().backward()
    plain.step()
for ours, theirs in zip(engine.module.parameters(), oracle.parameters()):
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-6)
print(deepspeed.comm.get_world_size())
"""
    assert python(code).endswith("1\n")


@pytest.mark.parametrize("name", ["compat", "engine"])
def test_the_alias_takes_from_compat_and_engine_only(name: str) -> None:
    sources = [path.read_text() for path in (PATH / "deepspeed").rglob("*.py")]
    assert any(f"from dslaunch.{name}." in source for source in sources)
    assert not any("import deepspeed" in source for source in sources)


def test_the_launchers_names_alone_are_the_launchers() -> None:
    """Nothing of the engine comes with them: `python -m deepspeed.launcher.runner` loads no torch."""
    names = {"launcher/runner.py", "env_report.py", "utils/numa.py"}
    for path in (PATH / "deepspeed").rglob("*.py"):
        of_launcher = "dslaunch.launcher" in path.read_text()
        assert of_launcher == (str(path.relative_to(PATH / "deepspeed")) in names), path
    assert python("import sys, deepspeed.launcher.runner; print('torch' in sys.modules)") == "False\n"


def test_the_path_for_other_launchers() -> None:
    code = "from dslaunch.launcher.ctl.cli import main; import sys; sys.argv[1:] = ['engine-path']; main()"
    assert Path(python(code).strip()).resolve() == PATH.resolve()


def test_what_scripts_catch_and_pass_in() -> None:
    code = """
import torch, deepspeed
model = torch.nn.Linear(2, 2)
empty = {"train_batch_size": 0}
for config, kind in (({}, AssertionError), (empty, AssertionError), ("nowhere.json", ValueError)):
    try:
        deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    except kind as error:
        assert isinstance(error, RuntimeError)
        print(str(error).splitlines()[0])
engine, optimizer, _, scheduler = deepspeed.initialize(
    model=model,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.5),
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1),
    config={"train_batch_size": 1, "zero_optimization": {"stage": 1}},
)
engine.backward(engine(torch.ones(1, 2)).sum())
engine.step()
print(round(engine.get_lr()[0], 3), deepspeed.comm.get_global_rank(deepspeed.comm.get_world_group(), 0))
"""
    lines = python(code).splitlines()
    assert lines[0] == "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided"
    assert lines[1].startswith("Train batch size: 0 has to be greater than 0")
    assert lines[2].startswith("Expected a string path to an existing deepspeed config")
    assert lines[3] == "0.05 0"
