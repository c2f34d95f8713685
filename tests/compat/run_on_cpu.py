"""`run_on_cpu.py SCRIPT ARGS...`: an unchanged script of Hugging Face's on CPU ranks, see on_cpu.py."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import on_cpu  # noqa: F401

script = next(word for word in sys.argv[1:] if not word.startswith("--"))  # --local_rank comes first
sys.argv.remove(script)
sys.path[0] = str(Path(script).parent)
runpy.run_path(script, run_name="__main__")
