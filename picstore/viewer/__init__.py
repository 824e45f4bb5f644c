"""Internal: a local web page that shows a data set, what transforms make of it, and the batches of a training."""
