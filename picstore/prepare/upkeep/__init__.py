"""Shuffling, verifying and repairing of data sets."""
