"""Transforms as values: geometry as one resampling, color as one program, transforms of whole batches."""
