"""The options about hosts mean to `dslaunchctl` what they mean to `dslaunch`: they are the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from dslaunch.launcher.options import SECTIONS
from dslaunch.launcher.request import LaunchRequest

Command = TypeVar("Command", bound=click.Command)

_SHARED = ("hostfile", "include", "exclude", "num_nodes", "num_gpus", "ssh_config", "ssh_port")
_WAYS = ("launcher", "launcher_args", "python", "venv_script", "start_timeout_s")


_OF_A_LAUNCH = (
    *(
        "accelerator",
        "launcher",
        "launcher_args",
        "master_addr",
        "master_port",
        "module",
        "python",
        "venv_script",
    ),
    *("cwd", "env", "env_file"),
)


def takes_hosts(command: Command) -> Command:
    """Decorate a command: give it the options about hosts, before its own."""
    return _take(command, _SHARED)


def takes_hosts_and_ways(command: Command) -> Command:
    """The same, and the options about how they are reached."""
    return _take(command, _SHARED + _WAYS)


def takes_launch(command: Command) -> Command:
    """The same with those that tell how a launch would reach the hosts, and what it would find there."""
    return _take(command, _SHARED + _OF_A_LAUNCH)


def _take(command: Command, names: tuple[str, ...]) -> Command:
    options = {option.name: option for section in SECTIONS for option in section.options}
    command.params[:0] = [options[name] for name in names]
    return command


def host_request(flags: dict[str, object]) -> LaunchRequest:
    """What the options about hosts say, as the request of a launch without a program."""
    return launch_request("", flags)


def launch_request(script: str, flags: dict[str, object]) -> LaunchRequest:
    """What the options say, as the request of a launch of `script`; "" for one without a program."""
    build: Callable[..., LaunchRequest] = LaunchRequest
    return build(script=script, no_python=not script, **flags)
