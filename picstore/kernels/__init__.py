"""Internal: kernels that both sides use, and how numba compiles kernels."""
