"""Swapping to NVMe, which the engine does not do; the constant is the least that DeepSpeed would swap."""

MIN_SWAPPABLE_BYTES = 1 << 20
