"""Rank 0 fails after a checkpoint of its own, until attempt LAST: what restarts are made of."""

import os
import sys
import time

attempt = os.environ["DSLAUNCH_ATTEMPT"]
if attempt == sys.argv[-1]:
    sys.exit(0)
if os.environ["RANK"] != "0":
    time.sleep(60)  # who failed before it would be the cause, and no progress made
with open(os.environ["DSLAUNCH_PROGRESS_FILE"], "w") as file:
    file.write(f"global_step{attempt}")
sys.exit(3)
