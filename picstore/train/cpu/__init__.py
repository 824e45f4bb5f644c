"""Images of a batch made on CPU cores: cut, decode, resample, color."""
