"""Loaders: the standard job against peers, recipes, accuracy, remote workers, startup."""
