"""The one error of this room."""

from __future__ import annotations


class BackendError(Exception):
    """A command could not be started on a host.

    Reads as `<host>: <what>`; `hint` is the next action for the user.
    """

    def __init__(self, host: str, what: str, hint: str) -> None:
        super().__init__(f"{host}: {what}")
        self.host = host
        self.what = what
        self.hint = hint
