"""The options about hosts mean to `dslaunchctl` what they mean to `dslaunch`: they are the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from dslaunch.launcher.options import SECTIONS
from dslaunch.launcher.request import LaunchRequest

Command = TypeVar("Command", bound=click.Command)

_SHARED = ("hostfile", "include", "exclude", "num_nodes", "num_gpus", "ssh_config", "ssh_port")


def takes_hosts(command: Command) -> Command:
    """Decorate a command: give it the options about hosts, before its own."""
    options = {option.name: option for section in SECTIONS for option in section.options}
    command.params[:0] = [options[name] for name in _SHARED]
    return command


def host_request(flags: dict[str, object]) -> LaunchRequest:
    """What the options about hosts say, as the request of a launch without a program."""
    build: Callable[..., LaunchRequest] = LaunchRequest
    return build(script="", no_python=True, **flags)
