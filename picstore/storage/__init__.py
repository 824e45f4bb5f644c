"""Internal: bytes at rest: locations, the storage format, edits, the manifest, datasets."""
