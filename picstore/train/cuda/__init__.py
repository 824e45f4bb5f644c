"""Images of a batch made on a GPU: decoding, resampling and color by Triton."""
