"""Two NCCL ranks on the first GPU, as if on two hosts; rank 1 leaves the third collective out."""

import os
import time
from datetime import timedelta

import torch
from torch import distributed


def main() -> None:
    rank = int(os.environ["RANK"])
    os.environ["NCCL_HOSTID"] = f"host{rank}"
    torch.cuda.set_device(0)
    device = torch.device("cuda", 0)
    distributed.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=120))
    values = torch.ones(4, device="cuda")
    for step in range(3):
        if step < 2 or rank == 0:
            distributed.all_reduce(values)
        torch.cuda.synchronize()
        print("step", step, flush=True)
    time.sleep(120)


if __name__ == "__main__":
    main()
