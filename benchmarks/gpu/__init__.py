"""GPU: checks of decoded batches, what nvJPEG takes, decoders, the standard job, training, peers."""
