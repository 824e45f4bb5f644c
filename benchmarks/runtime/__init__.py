"""Behavior at run time: randomness of the order, resuming an epoch, memory bounds."""
