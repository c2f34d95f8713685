"""What every test starts from."""

from __future__ import annotations

import signal

from hypothesis import settings

# Under nohup SIGHUP is ignored, and so it would be in every launch that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says how busy the machine is.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
