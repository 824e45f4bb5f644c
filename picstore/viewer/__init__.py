"""Internal: a local web page that shows a dataset, what transforms make of it, and the batches of a training."""
