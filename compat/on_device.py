"""`deepspeed.OnDevice`: what is built inside it lies on one device, in one dtype."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import torch


class OnDevice:
    """A context in which tensors and modules are made in `dtype` on `device`, `meta` included."""

    def __init__(self, dtype: torch.dtype, device: str | torch.device = "meta", enabled: bool = True) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self.enabled = enabled
        self._stack = ExitStack()

    def __enter__(self) -> None:
        if not self.enabled:
            return
        if self.dtype.is_floating_point:
            self._stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(self.dtype)
        self._stack.enter_context(self.device)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
