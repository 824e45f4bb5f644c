"""Kernels of one core: markers, cuts, decoding, resampling, color."""
