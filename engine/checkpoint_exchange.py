"""Reading what this rank's node has, and asking other ranks for the rest: storage local to the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from dslaunch.engine.checkpoint_find import Found
from dslaunch.engine.checkpoint_source import Fill
from dslaunch.engine.ranks import Ranks
from dslaunch.engine.tensor_files import BLOCK_BYTES, dtype_named


class Request(NamedTuple):
    """`numel` elements from `start` on of a stored tensor, that a rank cannot read itself."""

    file: int
    tensor: str
    start: int
    numel: int
    dtype: str


def carry_out(found: Found, ranks: Ranks, fills: Sequence[Fill]) -> None:
    """Carry out this rank's `fills`. Collective where not every rank sees every file, else not."""
    if found.everywhere:
        for fill in sorted(fills, key=lambda fill: fill.file):
            found.source.read(fill)
        return
    shards, rank = found.source.manifest.shards, ranks.world.rank
    owners = [found.who_sees(name) for name in shards]
    absent = [fill for fill in fills if rank not in owners[fill.file]]
    for fill in fills:
        if rank in owners[fill.file]:
            found.source.read(fill)
    wanted = ranks.gather([_request(fill) for fill in absent])
    # All ranks walk through all requests in one order, so that senders and receivers meet.
    for requester, requests in enumerate(wanted):
        for number, request in enumerate(requests):
            owner = owners[request.file][0]
            if rank == owner:
                _send(found, ranks, request, requester)
            elif rank == requester:
                _receive(ranks, absent[number], owner)


def _request(fill: Fill) -> Request:
    dtype = str(fill.dtype).removeprefix("torch.")
    return Request(fill.file, fill.tensor, fill.start, fill.out.numel(), dtype)


def _send(found: Found, ranks: Ranks, request: Request, requester: int) -> None:
    dtype = dtype_named(request.dtype)
    step = BLOCK_BYTES // dtype.itemsize
    for at in range(0, request.numel, step):
        block = torch.empty(min(step, request.numel - at), dtype=dtype)
        found.source.read(Fill(request.file, request.tensor, request.start + at, block, dtype))
        ranks.send(block, requester)


def _receive(ranks: Ranks, fill: Fill, owner: int) -> None:
    for out in torch.split(fill.out, BLOCK_BYTES // fill.dtype.itemsize):
        block = torch.empty(out.numel(), dtype=fill.dtype)
        ranks.receive(block, owner)
        out.copy_(block)
