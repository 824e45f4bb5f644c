"""Images of a batch made on a GPU: decoding, one Triton launch for resampling and color."""
