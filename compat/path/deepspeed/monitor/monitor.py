"""The writer of figures, for isinstance() and types."""

from dslaunch.engine.monitors import Monitors as MonitorMaster

__all__ = ["MonitorMaster"]
