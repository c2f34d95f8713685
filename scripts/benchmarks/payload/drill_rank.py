"""One rank of a drill: all-reduce without end, until rank 1 dies of SIGKILL or stays away.

`drill_rank.py crash|skip NOTE`: the victim writes the time of its fault, in ns since the epoch, to NOTE.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from own_host import choose_device  # type: ignore[import-not-found,unused-ignore]

VICTIM = 1
HEALTHY_STEPS = 20


def main() -> None:
    kind, note = sys.argv[1], Path(sys.argv[2])
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    data = torch.randn(1 << 20, device=device)
    step = 0
    while True:
        if dist.get_rank() == VICTIM and step == HEALTHY_STEPS:
            time.sleep(0.5)  # the others are in the collective by now
            note.write_text(str(time.time_ns()))
            if kind == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            stay_away()
        dist.all_reduce(data)
        data.div_(dist.get_world_size())
        if device.type == "cuda":
            torch.cuda.synchronize()
        step += 1


def stay_away() -> None:
    """What a rank does that waits for something that never comes."""
    time.sleep(3600)


if __name__ == "__main__":
    main()
