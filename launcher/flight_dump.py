"""A dump of torch's flight recorder, read without torch: it may come from a damaged process. Pure.

The format is that of torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2: a pickle of plain containers.
"""

from __future__ import annotations

import ast
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass

from dslaunch.launcher.stacks import Frame, place

_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")
_NUM_KEPT = 64
"""Of a group's newest collectives: ranks that wait for each other are not further apart."""


class DumpError(Exception):
    """Bytes that are no dump."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as a rank has entered it: `number` counts those of its group, from 1."""

    number: int
    name: str
    sizes: str
    state: str
    where: str


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """What one rank tells of a process group. `members` are global ranks, () where they are not told.

    `completed` is the number of its last collective that has ended, 0 for none or not known.
    """

    name: str
    members: tuple[int, ...]
    collectives: Mapping[int, Collective]
    completed: int

    @property
    def last(self) -> int:
        """The number of the newest collective, 0 for none."""
        return max(self.collectives, default=0)


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and text; nothing is imported."""

    def find_class(self, module: str, name: str) -> object:
        if module == "torch.jit._pickle" and name in _LISTS:
            return list
        if module == "torch.jit._pickle" and name == "restore_type_tag":
            return _without_tag
        raise pickle.UnpicklingError(f"a dump has no {module}.{name}")


def _without_tag(value: object, tag: str) -> object:
    return value


def read_dump(data: bytes) -> dict[str, GroupTrace]:
    """Each process group of one rank, by its name. Raises DumpError."""
    try:
        dump = _PlainUnpickler(io.BytesIO(data)).load()
        return _groups(dump)
    except Exception as error:  # unpickling garbage raises almost anything
        raise DumpError(f"no flight recorder dump: {error}") from error


def _groups(dump: object) -> dict[str, GroupTrace]:
    record = _record(dump)
    config = {str(name): _record(of) for name, of in _record(record["pg_config"]).items()}
    status = {str(name): _record(of) for name, of in _record(record.get("pg_status", {})).items()}
    entries = record["entries"]
    found: dict[str, dict[int, Collective]] = {}
    labels: dict[str, str] = {}
    ids: dict[str, str] = {}
    for entry in map(_record, entries if isinstance(entries, list) else []):
        if entry.get("is_p2p") is True:
            continue
        name, label = map(str, _list(entry["process_group"]))
        labels[name], ids[name] = label or name, str(entry.get("pg_id", name))
        collective = _collective(entry)
        found.setdefault(name, {})[collective.number] = collective
    for collectives in found.values():
        for number in sorted(collectives)[:-_NUM_KEPT]:
            del collectives[number]
    return {
        name: GroupTrace(
            labels[name],
            _members(config.get(name) or (config.get("", {}) if len(found) == 1 else {})),
            collectives,
            _completed(status.get(ids[name], {}), collectives),
        )
        for name, collectives in found.items()
    }


def _collective(entry: Mapping[str, object]) -> Collective:
    frames = [
        Frame(str(frame["name"]), str(frame["filename"]), _whole(frame["line"]))
        for frame in map(_record, _list(entry.get("frames")))
    ]
    return Collective(
        _whole(entry["collective_seq_id"]),
        str(entry["profiling_name"]).rpartition(":")[2],
        str(entry.get("input_sizes", "")),
        str(entry["state"]),
        place(frames),
    )


def _members(config: Mapping[str, object]) -> tuple[int, ...]:
    ranks = ast.literal_eval(str(config.get("ranks", "[]")))
    return tuple(int(rank) for rank in ranks)


def _completed(status: Mapping[str, object], collectives: Mapping[int, Collective]) -> int:
    told = status.get("last_completed_collective")
    ended = [number for number, each in collectives.items() if each.state == "completed"]
    return max([0, *ended, *([told] if isinstance(told, int) else [])])


def _record(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} where a record is due")
    return value


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{type(value).__name__} where a number is due")
    return value
