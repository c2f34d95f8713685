"""Whether the folder and the script are here, and which bytes the script has."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys

from dslaunch.launcher.survey.records import Program


def program(folder: str, script: str, *, is_module: bool) -> Program:
    """Looks at them as a rank would that starts in `folder`."""
    wrong = _wrong_folder(folder)
    if wrong or not script:
        return Program(folder=wrong)
    if is_module:
        return Program(script=_wrong_module(folder, script))
    path = os.path.join(folder, script)
    try:
        if os.path.isdir(path):  # python runs the __main__.py in it
            path = os.path.join(path, "__main__.py")
        with open(path, "rb") as file:
            return Program(digest=hashlib.sha256(file.read()).hexdigest())
    except OSError as error:
        return Program(script=_reason(error))


def _wrong_folder(folder: str) -> str:
    try:
        os.scandir(folder).close()
    except OSError as error:
        return _reason(error)
    return "" if os.access(folder, os.X_OK) else "may not be entered"


def _wrong_module(folder: str, module: str) -> str:
    """Only the first part is looked for: finding the others would run its code."""
    sys.path.insert(0, folder)
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError) as error:
        return str(error)
    finally:
        sys.path.remove(folder)
    return "" if found else "cannot be found"


def _reason(error: OSError) -> str:
    return "is not there" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
