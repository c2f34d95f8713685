"""A gloo job that goes on for ever; one rank may hang its own way at its tenth step."""

import os
import signal
import sys
import time

import torch
from torch import distributed


def endless() -> None:
    while True:
        pass


def blocked() -> None:
    os.read(os.pipe()[0], 1)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def never() -> None:
    pass


def main(how: str, who: int) -> None:
    distributed.init_process_group("gloo")
    values = torch.ones(4)
    for step in range(1_000_000):
        if step == 10:
            print("up", flush=True)
            if distributed.get_rank() == who:
                globals()[how]()
        distributed.all_reduce(values)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[-2], int(sys.argv[-1]))
