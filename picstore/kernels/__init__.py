"""Internal: numba's compilation of kernels, and kernels that several packages use."""
