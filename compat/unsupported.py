"""What DeepSpeed has and we have not: it imports, and says so when it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

_OR = "or keep this script on real DeepSpeed: dslaunch --engine installed"


@dataclass(frozen=True, slots=True)
class Missing:
    """Makes stand-ins for what `deepspeed.{module}` has; `instead` is what to do without it."""

    module: str
    instead: str

    def refuse(self, name: str) -> NoReturn:
        """Raise NotImplementedError."""
        raise NotImplementedError(
            f"deepspeed.{self.module}.{name} is not part of dslaunch's engine\nhint: {self.instead}, {_OR}"
        )

    def function(self, name: str) -> Callable[..., Any]:
        """A function that can be imported and not called."""

        def function(*_: object, **__: object) -> NoReturn:
            self.refuse(name)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"Not supported: {self.instead}."
        return function

    def type(self, name: str) -> type[Any]:
        """A class that can be imported, subclassed and asked for in isinstance(), and not instantiated."""

        def refuse(*_: object, **__: object) -> NoReturn:
            self.refuse(name)

        return type(name, (), {"__init__": refuse, "__doc__": f"Not supported: {self.instead}."})
