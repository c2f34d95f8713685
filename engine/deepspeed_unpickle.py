"""Reads files of `torch.save` without running anything they name.

Tensors, numbers, strings and plain containers come out as they are; an object of any other class as an
`Unread`, which keeps the class's name and the object's state and does nothing.
"""

from __future__ import annotations

import collections
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine.errors import CheckpointError


class Unread:
    """An object of a class that was not loaded."""

    class_name = ""

    def __new__(cls, *args: object, **kwargs: object) -> Unread:
        found = super().__new__(cls)
        found.__dict__.update(arguments=args, state={})
        return found

    arguments: tuple[object, ...]  # of its construction
    state: object  # what was pickled of it, usually its attributes

    def __setstate__(self, state: object) -> None:
        self.__dict__["state"] = state

    def get(self, name: str, default: object = None) -> object:
        """An attribute it had."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default

    # What pickles of containers call.
    def append(self, item: object) -> None: ...

    def extend(self, items: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def __repr__(self) -> str:
        return f"<{self.class_name}, not loaded>"


def _unread(class_name: str) -> type[Unread]:
    return type("Unread", (Unread,), {"class_name": class_name})


def _number(dtype: object, data: object = b"") -> object:
    """What numpy.core.multiarray.scalar makes, as a Python number."""
    code = dtype.arguments[0] if isinstance(dtype, Unread) and dtype.arguments else None
    formats = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "b1": "?"}
    formats |= {"u8": "Q", "u4": "I", "u2": "H", "u1": "B"}
    if code not in formats or not isinstance(data, bytes):
        return _unread("numpy scalar")(dtype, data)
    return struct.unpack("<" + formats[code], data)[0]


def _tensor_of_type(function: Callable[..., object], kind: object, args: Any, state: object) -> object:
    """What torch._tensor._rebuild_from_type_v2 makes, without the type and its state."""
    return function(*args)


_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool", "Untyped")
_ALLOWED: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): lambda *_: {},
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "complex"): complex,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): str,
    ("torch", "Tensor"): torch.Tensor,
    ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _tensor_of_type,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy._core.multiarray", "scalar"): _number,
    **{("torch", f"{name}Storage"): getattr(torch, f"{name}Storage") for name in _STORAGES},
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _ALLOWED.get((module, name)) or _unread(f"{module}.{name}")


# torch.load asks a module for its Unpickler; `load` is for the format before torch 1.6.
_PICKLE = SimpleNamespace(
    Unpickler=_Unpickler,
    load=lambda file, **options: _Unpickler(file, **options).load(),
    __name__="restricted",
)
_BROKEN = (RuntimeError, ValueError, EOFError, OSError, TypeError, KeyError, pickle.UnpicklingError)


def load_file(path: Path) -> dict[str, Any]:
    """The mapping a file holds, its tensors mapped from the file; CheckpointError where it is damaged."""
    if not path.is_file():
        raise files.missing(path)
    try:
        mapped = zipfile.is_zipfile(path)
        found = torch.load(
            path, map_location="cpu", weights_only=False, mmap=mapped, pickle_module=cast(Any, _PICKLE)
        )
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}")
    except (
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
        TypeError,
        KeyError,
        pickle.UnpicklingError,
    ) as error:
        raise CheckpointError(
            f"checkpoint file {path} is damaged: {(str(error) or type(error).__name__).splitlines()[0]}",
            files.DAMAGED_HINT,
        ) from None
    return found
