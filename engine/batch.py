"""The batch triangle: train_batch_size = micro batch * accumulation steps * data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

from dslaunch.engine.config import BatchRequest
from dslaunch.engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class World:
    """How many data-parallel ranks there are, which one this is, and who says so."""

    size: int
    rank: int
    local_rank: int
    source: str  # "the torch process group", "WORLD_SIZE" or "a single process"


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Samples of one optimizer step, samples of one forward on one rank, forwards of one optimizer step."""

    train: int
    micro: int
    accumulation: int


def resolve_batch(request: BatchRequest, world: World) -> BatchSizes:
    """Fill in what is not given as DeepSpeed does; ConfigError if the three numbers disagree."""
    train, micro = request.train_batch_size, request.train_micro_batch_size_per_gpu
    accumulation = request.gradient_accumulation_steps
    ranks = world.size
    _check_positive(train, micro, accumulation)
    match (train, micro, accumulation):
        case (int(), int(), int()):
            pass
        case (int(), int(), None):
            accumulation = train // micro // ranks
        case (int(), None, int()):
            micro = train // ranks // accumulation
        case (None, int(), int()):
            train = micro * accumulation * ranks
        case (int(), None, None):
            accumulation, micro = 1, train // ranks
        case (None, int(), None):
            accumulation, train = 1, micro * ranks
        case _:
            raise ConfigError(
                "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided",
                'write e.g. "train_micro_batch_size_per_gpu": 1',
            )
    assert train is not None
    assert micro is not None
    assert accumulation is not None
    _check_positive(train, micro, accumulation)
    if train != micro * accumulation * ranks:
        raise ConfigError(
            "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            f"gradient_acc_step * world_size {train} != {micro} * {accumulation} * {ranks} "
            f"(world_size {ranks} comes from {world.source})",
            _hint(train, request, world),
        )
    return BatchSizes(train, micro, accumulation)


def _check_positive(train: int | None, micro: int | None, accumulation: int | None) -> None:
    """First of what is given, then of what is derived: too few samples for the ranks divide to 0."""
    for title, value in (
        ("Train batch size", train),
        ("Micro batch size per gpu", micro),
        ("Gradient accumulation steps", accumulation),
    ):
        if value is not None and value <= 0:
            raise ConfigError(
                f"{title}: {value} has to be greater than 0",
                "train_batch_size has to be at least train_micro_batch_size_per_gpu * "
                "gradient_accumulation_steps * world_size",
            )


def _hint(train: int, request: BatchRequest, world: World) -> str:
    if world.size == 1 and world.source != "the torch process group":
        start = "if more ranks were meant, start the script with dslaunch; if not, "
    else:
        start = ""
    factor = (
        (request.train_micro_batch_size_per_gpu or 1)
        * (request.gradient_accumulation_steps or 1)
        * world.size
    )
    near = max(round(train / factor), 1) * factor
    return f"{start}give two of the three numbers, or a train_batch_size such as {near}"
