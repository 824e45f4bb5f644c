"""Order of samples: epochs, lanes, ranks, buckets and mixtures of datasets."""
