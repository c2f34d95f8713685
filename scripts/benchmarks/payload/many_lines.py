"""A rank that writes lines of 100 bytes, one write each, and keeps none: NUM_LINES LINES_A_SECOND."""

import os
import sys
import time

rank = os.environ["RANK"]
num_lines, lines_a_second = int(sys.argv[1]), int(sys.argv[2])
started_at = time.monotonic()
for i in range(num_lines):
    rest = (f"{rank} {i} ".ljust(99, "x") + "\n").encode()
    while rest:
        rest = rest[os.write(1, rest) :]
    if i % 1000 == 0:
        time.sleep(max(0.0, started_at + i / lines_a_second - time.monotonic()))
