"""Resampling and colour on the GPU: Triton kernels that take decoded images as they are and write the batch.

The only part of the project that imports Triton; nothing imports it before images are on a GPU.
"""
