"""Bytes at rest: docs/format.md in code. Knows nothing of what is inside an image."""
