"""Checkpoints that DeepSpeed wrote, as a `Source`: ZeRO 1 to 3 of any number of ranks, and stage 0.

Stages 1 and 2: a group's parameters lie one behind the other in a flat vector, cut evenly among the ranks.
Stage 3: of each parameter every rank has ceil(numel / ranks) elements, one behind the other.
Stage 0: the optimizer's states are numbered, in the order of the parameters in its groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from dslaunch.engine.checkpoint_manifest import (
    FROZEN,
    PARAM,
    Counters,
    Manifest,
    ParamEntry,
    WholeEntry,
)
from dslaunch.engine.checkpoint_source import Fill, SavedState
from dslaunch.engine.deepspeed_unpickle import Unread, load_file
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.layout import Piece

Names = Sequence[Sequence[str]]  # of the trained parameters, by group, in order

_INTERNAL = frozenset(  # keys of a model file that are DeepSpeed's own; the rest is the client state
    (
        *("module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params"),
        *("frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "skipped_steps"),
        *("sparse_tensor_module_names", "global_steps", "global_samples", "dp_world_size", "mp_world_size"),
        *("checkpoint_parallel_dimensions", "ds_config", "ds_version", "num_experts"),
        *("autoep_layers", "ds_autoep_layers"),
    )
)
_HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay", "momentum", "initial_lr")


def is_deepspeed(directory: Path) -> bool:
    """Whether DeepSpeed has written the checkpoint in `directory`."""
    return any(directory.glob("*_model_states.pt"))


class DeepSpeedSource:
    """A checkpoint of DeepSpeed's; `trained` is asked for where stage 0 does not say what is whose."""

    def __init__(self, directory: Path, trained: Names | None = None) -> None:
        self.directory = directory
        self._contents: dict[int, dict[str, Any]] = {}
        optim = _by_rank(directory, "*zero_pp_rank_*_optim_states.pt")
        models = _by_rank(directory, "zero_pp_rank_*_model_states.pt") or [
            directory / "mp_rank_00_model_states.pt"
        ]
        _refuse_others(directory)
        self._paths = [*optim, *models]
        self._first_model = len(optim)
        self._numbered: dict[str, torch.Tensor] = {}  # of stage 0
        self._model = self._load(self._first_model)
        if optim:
            self._optimizer = self._load(0)["optimizer_state_dict"]
            stage = _stage(self._optimizer["zero_stage"])
            self._check_count(len(optim))
        else:
            self._optimizer = self._model["optimizer"] or {}
            stage = 0
        self.manifest = self._describe(stage, len(optim), trained)

    @property
    def has_nameless_states(self) -> bool:
        """Whether it has optimizer states of which only an engine's groups could tell whose they are."""
        return bool(_states_of(self._optimizer)) and not self.manifest.param_groups

    def read(self, fill: Fill) -> None:
        source = self._tensor(fill.file, fill.tensor).reshape(-1)
        with torch.no_grad():
            fill.out.copy_(source[fill.start : fill.start + fill.out.numel()])

    def state(self) -> SavedState:
        model = self._model
        client = {key: value for key, value in model.items() if key not in _INTERNAL}
        return SavedState(client, model.get("lr_scheduler"), self._scaler(), {})

    def close(self) -> None:
        self._contents.clear()

    def _load(self, index: int) -> dict[str, Any]:
        if index not in self._contents:
            self._contents[index] = load_file(self._paths[index])
        return self._contents[index]

    def _tensor(self, file: int, name: str) -> torch.Tensor:
        if name in self._numbered:
            return self._numbered[name]
        content = self._load(file)
        kind = name.rpartition(".")[2]
        if name.startswith("module."):
            return cast(torch.Tensor, content["module"][name.removeprefix("module.")])
        if name.startswith("frozen."):
            return cast(torch.Tensor, content["frozen_param_fragments"][name[7 : -len("." + PARAM)]])
        group = int(name.split(".")[1])
        return _flat(content["optimizer_state_dict"], group, kind)

    def _check_count(self, found: int) -> None:
        count = self._optimizer["partition_count"]
        expected = max(count) if isinstance(count, list) else count
        if found != expected:
            raise CheckpointError(
                f"{self.directory} has {found} *_optim_states.pt files, but {expected} ranks wrote it",
                "copy the missing ones there",
            )

    def _describe(self, stage: int, world: int, trained: Names | None) -> Manifest:
        model = self._model
        params: dict[str, ParamEntry] = {}
        if stage == 0:
            states = self._number(trained)
            params.update(states)
        elif stage < 3:
            params.update(self._cut_by_group(world))
        else:
            params.update(self._cut_by_param(world))
        aliases = {**_tied(model["module"]), **(model.get("shared_params") or {})}
        buffers = set(model.get("buffer_names") or ())
        whole = {
            name: WholeEntry(self._first_model, tuple(value.shape), _dtype(value), name not in buffers)
            for name, value in model["module"].items()
            if isinstance(value, torch.Tensor) and name not in params and name not in aliases
        }
        groups = _param_groups(self._optimizer)
        return Manifest(
            tag=self.directory.name,
            saved_at=max(path.stat().st_mtime for path in self._paths if path.is_file()),
            world_size=int(model["dp_world_size"]),
            zero_stage=stage,
            dtype=_precision(model, params),
            counters=Counters(
                int(model["global_steps"]),
                int(model["global_samples"]),
                int(model["skipped_steps"]),
                self._num_steps(),
            ),
            shards=tuple(path.name for path in self._paths),
            params=params,
            whole=whole,
            aliases={alias: name for alias, name in aliases.items() if name in params or name in whole},
            param_groups=groups if any(entry.group != FROZEN for entry in params.values()) else (),
            kinds=tuple(("master", *self._states()) for _ in groups),
            files={},
        )

    def _states(self) -> list[str]:
        """The names of the elementwise states."""
        states = _states_of(self._optimizer)
        first = next(iter(states.values()), {})
        return [key for key, value in first.items() if isinstance(value, torch.Tensor) and value.dim()]

    def _num_steps(self) -> int:
        for holder in (*_states_of(self._optimizer).values(), *_raw_groups(self._optimizer)):
            if "step" in holder:
                return int(holder["step"])
        return int(self._model["global_steps"]) - int(self._model["skipped_steps"])

    def _cut_by_group(self, world: int) -> Iterator[tuple[str, ParamEntry]]:
        paddings = self._optimizer.get("param_alignment_paddings")
        for group, shapes in enumerate(self._model["param_shapes"]):
            size = _flat(self._optimizer, group, "master").numel()  # of every rank's part but the last
            offset = 0
            for index, (name, shape) in enumerate(shapes.items()):
                numel = math.prod(shape)
                pieces: list[Piece] = []
                low = offset
                while low < offset + numel:
                    rank = min(low // size, world - 1)
                    stop = offset + numel if rank == world - 1 else min(offset + numel, (rank + 1) * size)
                    pieces.append(Piece(rank, f"flat.{group}", low - rank * size, stop - low))
                    low = stop
                yield name, self._entry(name, tuple(shape), group, tuple(pieces))
                offset += numel + (paddings[group][index] if paddings else 0)

    def _cut_by_param(self, world: int) -> Iterator[tuple[str, ParamEntry]]:
        ends: list[int] = []  # of the sub-groups, in one rank's elements
        for flat in self._optimizer["fp32_flat_groups"]:
            ends.append((ends[-1] if ends else 0) + flat.numel())
        offset = 0
        for group, shapes in enumerate(self._model["param_shapes"]):
            for name, shape in shapes.items():
                numel = math.prod(shape)
                part = -(-numel // world)
                number = next((i for i, end in enumerate(ends) if offset < end), len(ends) - 1)
                start = offset - (ends[number - 1] if number else 0)
                pieces = _even_pieces(f"flat.{number}", start, numel, part, world)
                yield name, self._entry(name, tuple(shape), group, pieces)
                offset += part
        for name, shape in (self._model.get("frozen_param_shapes") or {}).items():
            numel = math.prod(shape)
            pieces = _even_pieces(f"frozen.{name}", 0, numel, -(-numel // world), world, self._first_model)
            yield name, self._entry(name, tuple(shape), FROZEN, pieces)

    def _number(self, trained: Names | None) -> Iterator[tuple[str, ParamEntry]]:
        """Stage 0: parameters from their numbers. Without `trained` only where one group leaves no doubt."""
        states = _states_of(self._optimizer)
        masters = self._optimizer.get("fp32_groups")
        flats = self._optimizer.get("fp32_groups_flat")
        groups = _raw_groups(self._optimizer)
        names = trained or self._guess(groups)
        if names is None or len(names) != len(groups):
            return
        for number, (group, of_group) in enumerate(zip(groups, names, strict=True)):
            if flats is None and len(group["params"]) != len(of_group):
                raise CheckpointError(
                    f"{self.directory}: optimizer group {number} has {len(group['params'])} parameters, "
                    f"this engine's {len(of_group)}",
                    "build the same groups, or pass load_optimizer_states=False",
                )
            offset = 0
            for index, name in enumerate(of_group):
                weight = self._model["module"][name]
                if flats is None:
                    stem, start = f"number.{number}.{index}", 0
                    master = weight if masters is None else masters[number][index]
                    self._numbered[f"{stem}.master"] = master
                    for kind in self._states():
                        self._numbered[f"{stem}.{kind}"] = states[group["params"][index]][kind]
                else:
                    stem, start = f"group.{number}", offset
                    self._numbered[f"{stem}.master"] = flats[number]
                    for kind in self._states():
                        self._numbered[f"{stem}.{kind}"] = states[group["params"][0]][kind]
                offset += weight.numel()
                yield (
                    name,
                    self._entry(name, tuple(weight.shape), number, (Piece(0, stem, start, weight.numel()),)),
                )

    def _guess(self, groups: Sequence[Mapping[str, Any]]) -> Names | None:
        left = {*(self._model.get("buffer_names") or ()), *_tied(self._model["module"])}
        names = [name for name in self._model["module"] if name not in left]
        if len(groups) != 1 or len(names) != len(groups[0]["params"]):
            return None
        return [names]

    def _entry(self, name: str, shape: tuple[int, ...], group: int, pieces: tuple[Piece, ...]) -> ParamEntry:
        return ParamEntry(shape, _dtype(self._model["module"][name]), group, pieces)

    def _scaler(self) -> Mapping[str, float] | None:
        scaler = self._optimizer.get("loss_scaler")
        get = scaler.get if isinstance(scaler, Unread) else self._optimizer.get
        if not self._optimizer.get("dynamic_loss_scale") or get("cur_scale") is None:
            return None
        return {
            "scale": float(cast(float, get("cur_scale"))),
            "hysteresis_left": int(cast(int, get("cur_hysteresis", 1))),
            "num_steps": int(cast(int, get("cur_iter", 0))),
            "last_overflow": int(cast(int, get("last_overflow_iter", -1))),
        }


def _by_rank(directory: Path, pattern: str) -> list[Path]:
    """Files of ranks, by rank; CheckpointError where one in between is missing."""
    found: dict[int, Path] = {}
    for path in directory.glob(pattern):
        match = re.search(r"zero_pp_rank_(\d+)_mp_rank_00", path.name)
        if match:
            found[int(match[1])] = path
    for rank in range(max(found, default=-1) + 1):
        if rank not in found:
            other = next(iter(found.values())).name
            name = re.sub(r"zero_pp_rank_\d+", f"zero_pp_rank_{rank}", other)
            raise CheckpointError(f"checkpoint file {directory / name} is missing", "load another tag")
    return [found[rank] for rank in range(len(found))]


def _tied(module: Mapping[str, object]) -> dict[str, str]:
    """Names of tensors that are another one's memory -> that one's name."""
    first: dict[tuple[int, torch.Size], str] = {}
    tied: dict[str, str] = {}
    for name, value in module.items():
        if isinstance(value, torch.Tensor) and value.numel():
            owner = first.setdefault((value.data_ptr(), value.shape), name)
            if owner != name:
                tied[name] = owner
    return tied


def _refuse_others(directory: Path) -> None:
    if (directory / "zero").is_dir():
        raise CheckpointError(
            f"{directory} is a universal checkpoint of DeepSpeed's", "load the one that it was made from"
        )
    for path in sorted(directory.glob("*.pt")):
        if re.search(r"mp_rank_0*[1-9]|^layer_|expert_|^expp_", path.name):
            raise CheckpointError(
                f"{directory} holds {path.name}: a model that is split by tensors, layers or experts",
                "only data-parallel checkpoints of DeepSpeed are read",
            )


def _even_pieces(
    tensor: str, start: int, numel: int, part: int, world: int, first_file: int = 0
) -> tuple[Piece, ...]:
    """A parameter of which rank i has elements [i * part, (i + 1) * part), from `start` of its tensor."""
    return tuple(
        Piece(first_file + rank, tensor, start, min(part, numel - rank * part))
        for rank in range(world)
        if rank * part < numel
    )


def _flat(optimizer: Mapping[str, Any], group: int, kind: str) -> torch.Tensor:
    if kind == "master":
        flats = optimizer.get("single_partition_of_fp32_groups") or optimizer["fp32_flat_groups"]
        return cast(torch.Tensor, flats[group])
    return cast(torch.Tensor, _states_of(optimizer)[group][kind])


def _inner(optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The wrapped optimizer's state dict: nested in ZeRO's and in the 16-bit wrappers', or the whole."""
    for key in ("base_optimizer_state", "optimizer_state_dict"):
        found = optimizer.get(key)
        if isinstance(found, dict):
            return found
    return optimizer


def _states_of(optimizer: Mapping[str, Any]) -> Mapping[int, Mapping[str, Any]]:
    return cast("Mapping[int, Mapping[str, Any]]", _inner(optimizer).get("state") or {})


def _raw_groups(optimizer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return cast("Sequence[Mapping[str, Any]]", _inner(optimizer).get("param_groups") or ())


def _param_groups(optimizer: Mapping[str, Any]) -> tuple[Mapping[str, object], ...]:
    return tuple(
        {key: _plain(group[key]) for key in _HYPERPARAMETERS if key in group}
        for group in _raw_groups(optimizer)
    )


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, torch.Tensor) else value


def _stage(value: object) -> int:
    return int(cast(int, value.arguments[0] if isinstance(value, Unread) else value))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _precision(model: Mapping[str, Any], params: Mapping[str, ParamEntry]) -> str:
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    dtype = next((entry.dtype for entry in params.values()), "float32")
    return names.get(dtype, dtype)
