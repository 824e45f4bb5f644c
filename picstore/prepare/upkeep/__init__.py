"""Shuffling, verifying and repairing of datasets."""
