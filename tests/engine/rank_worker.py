"""One rank of the test pool: takes jobs as pickles on stdin, answers on stdout. Started by conftest.py."""

from __future__ import annotations

import importlib
import os
import pickle
import struct
import sys
import traceback
from datetime import timedelta
from typing import BinaryIO


def send(stream: BinaryIO, value: object) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> object:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            module, function, arguments, world, rank, rendezvous = receive(requests)  # type: ignore[misc]
        except EOFError:
            return
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{rendezvous}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=60),
            )
            answer = ("ok", getattr(importlib.import_module(module), function)(*arguments))
        except BaseException:
            answer = ("error", traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        send(answers, answer)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a test prints stays out of the answers
    serve(sys.stdin.buffer, answers)
