"""Benchmarks of picstore: ``python -m benchmarks kernels|loaders|convert|runtime|gpu``; see docs/benchmarks.md."""
