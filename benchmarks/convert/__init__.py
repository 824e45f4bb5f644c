"""Conversion: against the peers' writers, shuffling against copying, object stores, resuming."""
