"""Text to Topology: DeepSpeed's hostfile, `worker-1 slots=4`, and what it could not say.

    line    = [ address slots [ max_slots ] [ python ] ] [ "#" comment ]    fields apart by blanks, any order
    address = [ user "@" ] ( name [ ":" port ] | ipv6 | "[" ipv6 "]" [ ":" port ] )
    slots   = "slots=" number
    max_slots = ( "max_slots=" | "max-slots=" ) number             as Open MPI writes it; not below slots
    python  = "python=" absolute path                              ours: the host's interpreter

A name may hold ranges: `worker-[0-63,70] slots=8` is 65 hosts. A byte order mark is skipped. What
DeepSpeed reads wrongly in silence (`slots=2.5`, `slots=0`, words after the slots) is an error here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dslaunch.hostfile.address import parse_address
from dslaunch.hostfile.errors import HostfileError, TopologyError, quoted
from dslaunch.hostfile.ranges import expand_names
from dslaunch.hostfile.topology import Host, Topology

MAX_SLOTS = 1024
"""The most slots one host may have; beyond it a typing error is likelier than the machine."""

# Not str.splitlines: a form feed or U+2028 is a blank within a line, for DeepSpeed as for editors.
_LINE_END = re.compile(r"\r\n|\r|\n")
_LINE_HINT = "a line reads: worker-1 slots=4"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def parse_hostfile_bytes(data: bytes, source: str) -> Topology:
    """`parse_hostfile` of a file's bytes, which must be UTF-8, with or without a byte order mark.

    Raises HostfileError, naming the line, for bytes that are not UTF-8.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line_number = len(_LINE_END.findall(data[: error.start].decode("utf-8"))) + 1
        line = _LINE_END.split(data.decode("utf-8", "backslashreplace"))[line_number - 1]
        hint = f"save the file as UTF-8{' (it is UTF-16)' if data.startswith(_UTF16_MARKS) else ''}"
        raise HostfileError(source, line_number, line.strip(), "not UTF-8", hint) from None
    return parse_hostfile(text, source)


def parse_hostfile(text: str, source: str) -> Topology:
    """The hosts of `text` in its order, which is rank order; `slots=N` gives devices 0..N-1.

    `source` is the name errors use, usually the file's path. Raises HostfileError with line and line
    number for a line that cannot be read or names a host for the second time, and TopologyError where
    no line names a host.
    """
    hosts: list[Host] = []
    line_numbers: dict[str, int] = {}
    for line_number, line in enumerate(_LINE_END.split(text.removeprefix("\ufeff")), start=1):
        try:
            for host in _hosts_of_line(line):
                key = host.name.lower()  # RFC 4343: host names do not tell case apart
                if key in line_numbers:
                    raise _listed_twice(host.name, line_numbers[key], line_number)
                line_numbers[key] = line_number
                hosts.append(host)
        except TopologyError as error:
            raise HostfileError(source, line_number, line.strip(), error.what, error.hint) from None
    if not hosts:
        raise TopologyError(
            f"{source}: no host in this file", f"{_LINE_HINT}; lines beginning with '#' are comments"
        )
    return Topology(tuple(hosts))


def _hosts_of_line(line: str) -> tuple[Host, ...]:
    fields = _fields(line)
    if not fields:
        return ()
    if fields[0].startswith(("slots=", "max_slots=", "max-slots=", "python=")):
        raise TopologyError(f"no host before {quoted(fields[0])}", _LINE_HINT)
    addresses = [parse_address(name) for name in expand_names(fields[0])]
    options = _options(fields[0], fields[1:])
    slots = tuple(range(options.num_slots))
    return tuple(Host(a.name, slots, a.user, a.port, options.python) for a in addresses)


def _fields(line: str) -> list[str]:
    """The words of a line up to its comment. A '#' within a path belongs to the path."""
    fields = []
    for word in line.split():
        if word.startswith("python="):
            fields.append(word)
            continue
        field, comment, _ = word.partition("#")
        fields += [field] if field else []
        if comment:
            break
    return fields


@dataclass(frozen=True, slots=True)
class _Options:
    """What stands behind a host."""

    num_slots: int
    python: str | None


def _options(host: str, fields: Sequence[str]) -> _Options:
    counts: dict[str, int] = {}
    python: str | None = None
    for field in fields:
        key, equals, value = field.partition("=")
        key = key.replace("max-slots", "max_slots")  # Open MPI takes both spellings
        if not equals or key not in ("slots", "max_slots", "python"):
            raise TopologyError(
                f"expects slots=N after the host, but got {quoted(field)}", _field_hint(field)
            )
        if key in counts or (key == "python" and python is not None):
            raise TopologyError(f"{key}= given twice", f"{_LINE_HINT}, with one host a line")
        if key == "python":
            python = _path(value)
        else:
            counts[key] = _count(key, value)
    if "slots" not in counts:
        raise TopologyError("missing slots=N", _missing_slots_hint(host, counts.get("max_slots")))
    if counts["slots"] > counts.get("max_slots", MAX_SLOTS):
        raise TopologyError(
            f"slots={counts['slots']} is above max_slots={counts['max_slots']}",
            "lower slots= or raise max_slots=",
        )
    return _Options(counts["slots"], python)


def _path(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise TopologyError(
            f"expects an absolute path after python=, but got {quoted(value)}",
            "write the interpreter's full path, without blanks: python=/opt/venv/bin/python",
        )
    return value


def _count(key: str, value: str) -> int:
    if not value:
        raise TopologyError(f"no number after {key}=", f"{_LINE_HINT}, without blanks around '='")
    if not value.isdecimal():
        raise TopologyError(f"expects a number above 0 after {key}=, but got {quoted(value)}", _LINE_HINT)
    number = int(value[-9:]) if not value[:-9].strip("0") else MAX_SLOTS + 1  # int() balks at 4301 digits
    if number == 0:
        raise TopologyError(f"{key}=0 gives the host no rank", "to leave a host out, put '#' before its line")
    if number > MAX_SLOTS:
        raise TopologyError(
            f"{key}= is above {MAX_SLOTS}, the most that are believed",
            "it is the number of devices of one host",
        )
    return number


def _missing_slots_hint(host: str, max_slots: int | None) -> str:
    if max_slots is not None:
        return f"max_slots= only limits slots=; write: {host} slots={max_slots}"
    name, _, number = host.rpartition(":")
    if name and number.isdecimal() and (":" not in name or name.endswith("]")):
        return f"a number after ':' is an SSH port; for slots write: {name} slots={number}"
    return f"write how many devices to use: {host} slots=4"


def _field_hint(field: str) -> str:
    if field in ("slots", "max_slots", "="):
        return f"{_LINE_HINT}, without blanks around '='"
    if re.fullmatch(r"slots=\d{1,4}", field, re.IGNORECASE | re.ASCII):
        return f"write it in lower case: {field.lower()}"
    return f"{_LINE_HINT}, with one host a line and comments after '#'"


def _listed_twice(name: str, earlier: int, line_number: int) -> TopologyError:
    where = "twice on this line" if earlier == line_number else f"again, first on line {earlier}"
    return TopologyError(
        f"host {quoted(name)} is listed {where}",
        "list a host once, with all of its slots; what needs another port or user needs its own name",
    )
