"""Formats that ``export`` writes, one module per format."""
