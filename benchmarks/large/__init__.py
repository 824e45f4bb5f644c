"""Crops of large photographs: from the page cache, a slow disk and an object store (docs/large-images.md)."""
