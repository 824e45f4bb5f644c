"""Internal: stored bytes: locations, the storage format, edits, the manifest, datasets."""
