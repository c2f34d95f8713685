"""Signals to this process as something that a selector can wait for."""

from __future__ import annotations

import os
import signal


class SignalPipe:
    """Readable at `fd` once one of the signals has come; none of them does anything else any more."""

    def __init__(self, *numbers: int) -> None:
        self.fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)

    def take(self) -> set[int]:
        """Those that have come since the last time."""
        return set(os.read(self.fd, 4096))
