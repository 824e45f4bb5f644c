"""Conversion of a source: rows, resuming, appending, retrying, merging shards."""
