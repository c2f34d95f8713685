"""Faults, and whether a job is gone after them: for `dslaunchctl selftest` and for the benchmark."""
