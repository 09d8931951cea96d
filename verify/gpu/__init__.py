"""The GPU: which one, one tensor on it, launches, timing. CuPy is imported here alone."""
