"""Which device a rank of a benchmark uses."""

from __future__ import annotations

import os

import torch

ONE_GPU = "BENCH_ONE_GPU"


def choose_device() -> torch.device:
    """The local rank's GPU, made current, or the CPU.

    With BENCH_ONE_GPU=1 all ranks share the first GPU: NCCL refuses two ranks of one host on a device, so
    that each claims a host of its own. Call it before the process group is made.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if os.environ.get(ONE_GPU) == "1":
        os.environ["NCCL_HOSTID"] = f"rank-{index}"
        os.environ["LOCAL_RANK"] = "0"  # which engines take for the device's number
        index = 0
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
