"""Run one argv on a host, stream its bytes, close it. Knows nothing of ranks."""
