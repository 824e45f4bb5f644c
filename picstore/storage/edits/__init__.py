"""Changes to a finished dataset: tombstones, columns, their entries in the manifest."""
