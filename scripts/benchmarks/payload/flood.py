"""A rank that writes lines of 100 bytes: FOLDER NUM_LINES own|same. Leaves RANK.pid and RANK.json there."""

import json
import os
import sys
import time

WIDTH = 100

folder, num_lines, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
with open(f"{folder}/{rank}.pid", "w") as file:
    file.write(str(os.getpid()))
head = b"LOG %03d" % (0 if kind == "same" else rank)
lines = [(b"%s %07d " % (head, i)).ljust(WIDTH - 1, b"x") + b"\n" for i in range(num_lines)]
started_at = time.monotonic()
for line in lines:
    rest = line  # one write a line, as print() of an unbuffered Python and most loggers do
    while rest:
        rest = rest[os.write(1, rest) :]
write_s = time.monotonic() - started_at
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"started_at": started_at, "write_s": write_s, "cpu_s": time.process_time()}, file)
