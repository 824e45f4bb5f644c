"""GPU: checks of decoded batches, kernels, the standard job, training, peers."""
