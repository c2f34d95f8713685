"""What each host runs for `check --nccl`: all-reduces with one other host after the other, timed.

Its text travels in argv (`python -c`), so it imports nothing of dslaunch. Nobody else imports torch here.
"""

import json
import os
import sys
import time
from datetime import timedelta

MARK = "dslaunch-pair:"
_NUM_BYTES = {"gloo": 16 << 20, "nccl": 64 << 20}
_REPEATS = 4
_ENOUGH_S = 1.0
"""A pair that has taken so long is not repeated."""


def opponents(rank: int, num_ranks: int, max_rounds: int) -> list[int]:
    """Whom `rank` meets in each round, -1 for nobody: the circle method of round-robin tournaments.

    In each round everybody meets one other at most, and what `a` has for `b`, `b` has for `a`. With rounds
    enough all pairs meet once; else the rounds are spread over all there are.
    """
    num_seats = num_ranks + num_ranks % 2  # an odd one sits out
    last = num_seats - 1
    rounds = range(last)
    if max_rounds < last:
        rounds = [i * last // max_rounds for i in range(max_rounds)]  # type: ignore[assignment]
    met = []
    for number in rounds:
        if rank == last:
            other = number * (num_seats // 2) % last
        else:
            other = (number - rank) % last
            other = last if other == rank else other
        met.append(other if other < num_ranks else -1)
    return met


def main(max_rounds: int, limit_s: float) -> None:
    """Prints a line for each pair in which this rank is the lower one, and for each that fails."""
    import torch
    import torch.distributed as dist

    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a timeout is raised where it is waited for
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    limit = timedelta(seconds=limit_s)
    dist.init_process_group(backend, timeout=limit)
    tensor = torch.zeros(_NUM_BYTES[backend], dtype=torch.uint8, device=device)
    for other in opponents(rank, num_ranks, max_rounds):
        if other < 0:  # torch names a group by how many were made before: everybody makes one a round
            dist.new_group([rank], timeout=limit, use_local_synchronization=True)
            continue
        pair = {"ranks": [rank, other], "backend": backend, "num_bytes": tensor.numel()}
        try:
            group = dist.new_group(sorted((rank, other)), timeout=limit, use_local_synchronization=True)
            dist.all_reduce(tensor[:1], group=group)  # connects
            best_s, started_at = float("inf"), time.monotonic()
            for _ in range(_REPEATS):
                before = time.monotonic()
                dist.all_reduce(tensor, group=group)
                tensor[:1].cpu()  # is there when all of it is
                best_s = min(best_s, time.monotonic() - before)
                has_enough = torch.tensor([float(time.monotonic() - started_at > _ENOUGH_S)], device=device)
                dist.all_reduce(has_enough, group=group)
                if has_enough.item():
                    break
        except Exception as error:
            _tell({**pair, "error": str(error).partition("\n")[0] or type(error).__name__})
            sys.stdout.flush()
            os._exit(1)  # the others would wait for this one
        if rank < other:
            _tell({**pair, "seconds": best_s})
    dist.barrier()
    dist.destroy_process_group()


def _tell(record: "dict[str, object]") -> None:
    sys.stdout.write(MARK + json.dumps(record) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
