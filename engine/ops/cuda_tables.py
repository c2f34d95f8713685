"""Which block of a launch steps which elements. Many tensors need a table on the GPU, kept for reuse."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from dataclasses import dataclass

import torch

from dslaunch.engine.ops.kernel_arguments import ENTRY_NUM_WORDS, Entry, Launch
from dslaunch.engine.ops.shard import Batch

_MAX_TABLES = 32  # of one process: 4 bytes a block each, and gradients that move make a new one each step


@dataclass(slots=True)
class Grid:
    """The blocks of one launch. `launch` lacks grad_scale, found_inf and partials."""

    launch: Launch
    num_blocks: int
    num_tensors: int
    device: int


@dataclass(frozen=True, slots=True)
class Table:
    """Entries and the entry of each block, on the GPU and as they were sent there.

    A CUDA graph that was captured while they were sent sends them again.
    """

    host: torch.Tensor
    device: torch.Tensor
    num_blocks: int
    num_tensors: int


class Tables:
    """The tables of the last launches."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, ...], Table] = OrderedDict()
        self._captured: list[Table] = []  # what graphs read at every replay

    def grid(self, batch: Batch, block_numel: int) -> Grid:
        """Blocks of `block_numel` elements over all tensors; tensors without elements have none."""
        device = batch.device.index if batch.device.index is not None else torch.cuda.current_device()
        words = batch.words
        if len(words) == ENTRY_NUM_WORDS:
            num_blocks = -(-words[5] // block_numel)
            return Grid(Launch(flat=Entry(*words)), num_blocks, 1, device)
        # A table may be freed once the stream it was used on has moved on, so it belongs to a stream.
        key = (*words, block_numel, device, torch.cuda.current_stream(device).cuda_stream)
        capturing = torch.cuda.is_current_stream_capturing()
        if (table := self._tables.get(key)) is not None:
            self._tables.move_to_end(key)
        else:
            table = _send(batch, block_numel, device)
            if not capturing:  # else it is on the GPU only once the graph has been replayed
                self._tables[key] = table
                if len(self._tables) > _MAX_TABLES:
                    self._tables.popitem(last=False)
        if capturing:
            self._captured.append(table)
        start = table.device.data_ptr()
        launch = Launch(table=start, tensor_of_block=start + table.num_tensors * ctypes.sizeof(Entry))
        return Grid(launch, table.num_blocks, table.num_tensors, device)


def _send(batch: Batch, block_numel: int, device: int) -> Table:
    words = torch.tensor(batch.words, dtype=torch.int64).view(-1, ENTRY_NUM_WORDS)
    words = words[words[:, 5] > 0]
    blocks = (words[:, 5] + block_numel - 1).div(block_numel, rounding_mode="floor")
    words[:, 6] = blocks.cumsum(0) - blocks
    tensor_of_block = torch.arange(len(words), dtype=torch.int32).repeat_interleave(blocks)
    num_words, num_blocks = words.numel(), len(tensor_of_block)
    host = torch.empty(num_words + (num_blocks + 1) // 2, dtype=torch.int64, pin_memory=True)
    host[:num_words] = words.view(-1)
    host[num_words:].view(torch.int32)[:num_blocks] = tensor_of_block
    return Table(host, host.to(torch.device("cuda", device), non_blocking=True), num_blocks, len(words))
