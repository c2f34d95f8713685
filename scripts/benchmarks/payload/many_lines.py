"""A rank that writes lines of 100 bytes, one write each, and keeps none: NUM_LINES."""

import os
import sys

rank = os.environ["RANK"]
for i in range(int(sys.argv[-1])):
    rest = (f"{rank} {i} ".ljust(99, "x") + "\n").encode()
    while rest:
        rest = rest[os.write(1, rest) :]
