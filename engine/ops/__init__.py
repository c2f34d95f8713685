"""Numeric kernels, each with a pure-torch reference that is both the oracle and the fallback."""
