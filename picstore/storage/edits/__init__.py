"""Changes to a finished data set: tombstones, columns, their entries in the manifest."""
