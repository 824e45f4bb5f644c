"""Threads, the loader's process and devices: the way of a batch to the training loop."""
