"""Which checkpoint to load, and what of it each rank sees. Everything here is collective.

Files are verified, each by one rank that sees it, before anything is read into an engine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine import log
from dslaunch.engine.checkpoint_source import NativeSource, SavedState, Source, state_from
from dslaunch.engine.deepspeed_source import DeepSpeedSource, Names, is_deepspeed
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.ranks import Ranks

RESUME_VARIABLE = "DSLAUNCH_RESUME"  # set by the launcher when it starts a job again


@dataclass(frozen=True, slots=True)
class Found:
    """An open checkpoint, and which of `names` each rank sees."""

    source: Source
    names: tuple[str, ...]
    seen: tuple[int, ...]  # by rank: bit i stands for names[i]

    @property
    def everywhere(self) -> bool:
        """Whether every rank sees every file."""
        return all(mask == (1 << len(self.names)) - 1 for mask in self.seen)

    def who_sees(self, name: str) -> list[int]:
        """The ranks that see a file."""
        bit = self.names.index(name)
        return [rank for rank, mask in enumerate(self.seen) if mask >> bit & 1]

    def state(self, ranks: Ranks) -> SavedState:
        """What is not tensors; from a rank that has it."""
        if self.everywhere:
            return self.source.state()
        first = self.who_sees(manifests.STATE_FILE)[0]
        path = self.source.directory / manifests.STATE_FILE
        return state_from(ranks.gather(path.read_bytes() if ranks.world.rank == first else b"")[first])


def find(ranks: Ranks, load_dir: Path, tag: str | None, trained: Names | None = None) -> Found | None:
    """The checkpoint `tag`, or the one `latest` names; None where there is no `latest`.

    CheckpointError where it is damaged. After a restart by the launcher (DSLAUNCH_RESUME) and without a tag,
    a damaged one is named and passed over for the one saved before it. `trained`: the engine's parameters, by
    group and in order, for checkpoints that do not name them.
    """
    candidates = _candidates(ranks, load_dir, tag)
    passed: list[str] = []
    for candidate in candidates:
        try:
            return _open(ranks, load_dir, candidate, trained)
        except CheckpointError as error:
            if len(candidates) == 1:
                raise _with_others(error, load_dir, candidate) from None
            passed.append(candidate)
            log.warn(ranks.world.rank, f"passing over the checkpoint {candidate}: {error.what}")
    if not candidates:
        return None
    raise CheckpointError(
        f"no checkpoint in {load_dir} is whole: {', '.join(passed)} are damaged",
        "see the warnings before for each; remove them to start from the beginning",
    )


def _candidates(ranks: Ranks, load_dir: Path, tag: str | None) -> list[str]:
    """What to try, in order: as rank 0 says where it sees any, else the first rank that does."""
    resuming = os.environ.get(RESUME_VARIABLE, "0") not in ("", "0")

    def look() -> list[str]:
        newest = tag if tag is not None else files.newest_tag(load_dir)
        if newest is None or tag is not None or not resuming:
            return [] if newest is None else [newest]
        return [newest, *_others(load_dir, newest)]

    return next((found for found in ranks.gather(look()) if found), [])


def _others(load_dir: Path, tag: str) -> list[str]:
    """The other checkpoints in `load_dir`, the newest first."""
    found = [name for name in files.tags(load_dir) if name != tag]
    return sorted(found, key=lambda name: files.saved_at(load_dir, name), reverse=True)


def _with_others(error: CheckpointError, load_dir: Path, tag: str) -> CheckpointError:
    """The error of a damaged checkpoint with the names of some that may be whole."""
    others = _others(load_dir, tag)[:3]
    if error.hint != files.DAMAGED_HINT or not others:
        return error
    return CheckpointError(error.what, f"{error.hint}; saved before: {', '.join(others)}")


def _open(ranks: Ranks, load_dir: Path, tag: str, trained: Names | None) -> Found:
    rank, leaders = ranks.world.rank, ranks.leaders
    opened: list[Source] = []

    def look() -> None:
        directory = files.find(load_dir, tag)
        if directory is not None:
            opened.append(open_source(directory, trained))

    ranks.settle(ranks.attempt(look))
    saved_at = ranks.gather(opened[0].manifest.saved_at if opened else None)
    holders = [holder for holder, time in enumerate(saved_at) if time is not None]
    if not holders:
        raise files.no_such_tag(load_dir, tag)
    if len({saved_at[holder] for holder in holders}) > 1:
        raise CheckpointError(
            f"the nodes hold different checkpoints {tag} in {load_dir}", "load another tag on all nodes"
        )
    if len(holders) < ranks.world.size:
        manifest = ranks.gather(opened[0].manifest if rank == holders[0] else None)[holders[0]]
        assert manifest is not None
        source = opened[0] if opened else NativeSource(load_dir / tag, manifest)
    else:
        source = opened[0]
    names = tuple(sorted(source.manifest.files))
    own = sum((source.directory / name).is_file() << bit for bit, name in enumerate(names))
    masks = ranks.gather(own if leaders[rank] == rank else 0)
    found = Found(source, names, tuple(masks[leader] for leader in leaders))
    ranks.settle(ranks.attempt(lambda: _verify(found, rank)))
    return found


def open_source(directory: Path, trained: Names | None = None) -> Source:
    """The checkpoint in `directory`, ours or DeepSpeed's; CheckpointError where it is damaged."""
    if is_deepspeed(directory):
        return DeepSpeedSource(directory, trained)
    return NativeSource(directory, manifests.read(directory))


def _verify(found: Found, rank: int) -> None:
    for number, name in enumerate(found.names):
        path = found.source.directory / name
        seeing = found.who_sees(name)
        if not seeing:
            raise files.missing(path)
        if seeing[number % len(seeing)] == rank:
            files.check(path, found.source.manifest.files[name])
