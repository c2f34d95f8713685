"""What every test starts from."""

from __future__ import annotations

import signal

# Under nohup SIGHUP is ignored, and so it would be in every launch that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
