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
read_fd, write_fd = os.pipe()  # closed as the child becomes `sleep`: until then it looks like a rank
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "300"])
    os._exit(0)
os.wait()
os.close(write_fd)
os.read(read_fd, 1)
os.write(1, b"RANKLINE %d\n" % os.getpid())
time.sleep(300)
