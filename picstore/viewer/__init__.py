"""Internal: local web page that shows a dataset, images that transforms draw, and batches of a training run."""
