"""What every test starts from."""

from __future__ import annotations

import signal

from hypothesis import settings

# Under nohup SIGHUP is ignored, in the background of a script SIGINT, and so they would be in every launch
# that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
