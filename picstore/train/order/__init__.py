"""Order of samples: epochs, lanes, ranks, mixtures."""
