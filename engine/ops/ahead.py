"""The CPU kernels built while a rank still imports torch and makes its model.

The first rank of a node to import the engine starts the compiler in a thread, where the library is missing;
the first use waits for it. Other scripts, and programs that only read a configuration, start nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

from dslaunch.engine.ops import artifacts, build
from dslaunch.engine.ops.toolchain import BuildError

_started: threading.Thread | None = None


def start(environ: Mapping[str, str]) -> bool:
    """Whether a build was started: this is a node's first rank, and there is none yet."""
    global _started
    is_first = environ.get("RANK") and environ.get("LOCAL_RANK") == "0"
    if not is_first or environ.get("DSLAUNCH_OPS") == "torch" or artifacts.find(build.cpu_name()) is not None:
        return False
    _started = threading.Thread(target=_build, name="dslaunch-build", daemon=True)
    _started.start()
    return True


def finish() -> None:
    """Wait for the build, if one was started."""
    if _started is not None:
        _started.join()


def _build() -> None:
    # The first use meets an error again, and says so. RuntimeError: the script has ended meanwhile.
    with contextlib.suppress(BuildError, OSError, RuntimeError):
        build.build_cpu()
