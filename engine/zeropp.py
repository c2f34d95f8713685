"""Cheaper gathers for stage 3, after ZeRO++ (Wang et al., 2023): from the node (hpZ), in eight bits (qwZ).

Legend: `P` elements of a bucket, `S` = P / W elements of this rank's shard, `W` ranks.
hpZ: in a training forward every rank keeps a second shard of what it has gathered, cut over the ranks of its
node only; backward then gathers inside the node. It is forgotten when the pass is over.
qwZ: what travels between ranks are int8 blocks of BLOCK_NUMEL elements, each with a bf16 scale. Masters and
shards stay exact; only the copy that forward and backward compute with is rounded, on all ranks alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from dslaunch.engine import collectives
from dslaunch.engine.batch import World
from dslaunch.engine.collectives import Pending
from dslaunch.engine.errors import EngineError
from dslaunch.engine.layout import ALIGNMENT_NUMEL

BLOCK_NUMEL = ALIGNMENT_NUMEL  # shards are multiples of it
_LARGEST = 127


@dataclass(frozen=True, slots=True)
class Node:
    """The ranks that hold a second shard together, and this rank's place among them."""

    group: dist.ProcessGroup
    size: int
    index: int


def join_node(world: World, size: int) -> Node | None:
    """The node of `size` neighbouring ranks; None where that would be one rank, or all. Collective."""
    path = "zero_optimization.zero_hpz_partition_size"
    if size in (1, world.size):
        return None
    if world.size % size:
        raise EngineError(
            f"{path}: {world.size} ranks are no multiple of {size}",
            "set it to the number of ranks of a node, the same on all nodes",
        )
    mine = None
    for first in range(0, world.size, size):
        group = dist.new_group(list(range(first, first + size)))
        if first <= world.rank < first + size:
            mine = Node(group, size, world.rank - first)
    return mine


class QuantizedPending(NamedTuple):
    """An all-gather of quantized shards on its way; `wait` fills the bucket."""

    pending: Pending
    gathered: torch.Tensor  # every rank's payload, uint8
    into: torch.Tensor  # [P]
    num_ranks: int

    def wait(self) -> None:
        """Make the current stream (or the CPU) wait, and restore the bucket from what has arrived."""
        self.pending.wait()
        dequantize(self.gathered, self.into, self.num_ranks)


def gather_quantized(bucket: torch.Tensor, shard: torch.Tensor) -> QuantizedPending:
    """Start filling `bucket` [P] from every rank's `shard` [S], rounded to int8 blocks."""
    payload, num_ranks = quantize(shard), bucket.numel() // shard.numel()
    gathered = payload.new_empty(payload.numel() * num_ranks)
    return QuantizedPending(collectives.all_gather(gathered, payload), gathered, bucket, num_ranks)


def quantize(shard: torch.Tensor) -> torch.Tensor:
    """`shard` [S] as uint8: S int8 values, then S / BLOCK_NUMEL bf16 scales; not finite becomes nan."""
    blocks = shard.view(-1, BLOCK_NUMEL).float()
    scales = (blocks.abs().amax(dim=1) / _LARGEST).bfloat16()
    safe = torch.where(scales > 0, scales, 1).float().unsqueeze(1)
    values = (blocks / safe).round_().clamp_(-_LARGEST, _LARGEST).nan_to_num_().to(torch.int8)
    return torch.cat([values.view(-1).view(torch.uint8), scales.view(torch.uint8)])


def dequantize(gathered: torch.Tensor, into: torch.Tensor, num_ranks: int) -> None:
    """The values of `num_ranks` payloads, one after another, in `into` [P]."""
    numel = into.numel() // num_ranks
    payloads = gathered.view(num_ranks, -1)
    shape = (num_ranks, numel // BLOCK_NUMEL, BLOCK_NUMEL)
    values = payloads[:, :numel].view(torch.int8).as_strided(shape, (payloads.stride(0), BLOCK_NUMEL, 1))
    scales = payloads[:, numel:].contiguous().view(torch.bfloat16).float()
    torch.mul(values, scales.unsqueeze(2), out=into.view(shape))
