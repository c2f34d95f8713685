"""`dslaunchctl config` hands on to the engine's linter, and its exit code back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Run


def test_a_config_is_linted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"train_batch_size": 4, "gradient_clipping": 0}')
    ran = run("config", "good.json", "--world-size", "2", "--params", "1e6", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["batch"] == {"train": 4, "micro": 2, "accumulation": 1, "world_size": 2}
    (tmp_path / "-bad.json").write_text('{"train_batch_size": "auto"}')
    ran = run("config", "--auto", "--", "-bad.json")
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, "-bad.json: 0 errors, 0 warnings, 2 notes")
    ran = run("config", "--", "-bad.json")
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (2, "-bad.json: 1 error, 0 warnings, 1 note")
