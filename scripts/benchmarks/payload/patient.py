"""A rank that waits until it is ended: heeds|ignores. With SIGUSR1 it exits with 7.

It has a child, forked twice, in a session of its own. Where it ignores polite signals, so does the child.
"""

import os
import signal
import sys
import time

signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
if "ignores" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "300"])
    os._exit(0)
os.wait()
os.write(1, b"RANKLINE %d\n" % os.getpid())
time.sleep(300)
