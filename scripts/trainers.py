"""Every case of Hugging Face's, Lightning's and TRL's trainers on the engine, as a table for docs.

Each case compares with the same training without an engine. With --deepspeed, the Python of an environment
that has DeepSpeed (and the libraries) installed, the same cases run on that too, started by dslaunch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DSLAUNCH = Path(sys.executable).parent / "dslaunch"
CASES = ROOT / "tests/compat"
SCRIPTS = ("trainer_cases.py", "accelerate_cases.py", "trl_cases.py", "lightning_cases.py", "script_cases.py")
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "trl", "lightning")
TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Place:
    """What the cases run on."""

    engine: str
    python: str
    num_gpus: int  # 0: on the CPU


def main() -> int:
    """0 where every case of the bundled engine went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deepspeed", metavar="PYTHON", help="a Python that has DeepSpeed installed")
    parser.add_argument("scripts", nargs="*", default=SCRIPTS, metavar="SCRIPT", help="[all]")
    parser.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="on so many GPUs [two ranks on the CPU]"
    )
    options = parser.parse_args()
    bundled = run_all(options.scripts, "bundled", sys.executable, options.gpus)
    installed = (
        run_all(options.scripts, "installed", options.deepspeed, options.gpus) if options.deepspeed else {}
    )
    print(f"\n{', '.join(f'{name} {version(name)}' for name in LIBRARIES)}\n")
    print("| case | bundled |" + (" installed |" if installed else ""))
    print("|---|---|" + ("---|" if installed else ""))
    for name, words in bundled.items():
        print(f"| {name} | {words} |" + (f" {installed.get(name, 'no answer')} |" if installed else ""))
    return int(not bundled or any(words != "ok" for words in bundled.values()))


def run_all(scripts: list[str], engine: str, python: str, num_gpus: int) -> dict[str, str]:
    """How every case has ended, by `script: case`; what a case saves, a later one may load on one rank."""
    place = Place(engine, python, num_gpus)
    found: dict[str, str] = {}
    for script in scripts:
        with tempfile.TemporaryDirectory() as folder:
            found |= run(place, script, num_gpus or 2, folder)
            if script == "trainer_cases.py" and num_gpus != 1:
                found |= run(place, script, 1, folder, "resume_at_another_world_size")
    return found


def run(place: Place, script: str, num_ranks: int, folder: str, *cases: str) -> dict[str, str]:
    """One launch; a case that never ends is missing."""
    options = [f"--engine={place.engine}", f"--python={place.python}", f"--num_gpus={num_ranks}"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if not place.num_gpus:
        options.append("--accelerator=cpu")
        environ["CUDA_VISIBLE_DEVICES"] = ""
    command = [str(DSLAUNCH), *options, str(CASES / script), folder, *cases]
    print(f"== {script} on {num_ranks} ranks, {place.engine}", flush=True)
    found: dict[str, str] = {}
    with subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, text=True) as launched:
        assert launched.stdout is not None
        try:
            for line in launched.stdout:
                words = line.rpartition("] ")[2].split()
                if words[:1] == ["case"]:
                    found[f"{script.removesuffix('_cases.py')}: {words[1]}"] = words[2]
                    print(line.rstrip(), flush=True)
            launched.wait(TIMEOUT_S)
        except BaseException:
            launched.terminate()
            raise
    return found


if __name__ == "__main__":
    sys.exit(main())
