"""Loaders: the standard job against peers, memory, the interpreter's time, processes against threads, startup."""
