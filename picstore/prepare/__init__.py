"""Internal: work before training (converting, shuffling, verifying, repairing, exporting), without torch."""
