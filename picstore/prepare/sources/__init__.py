"""Formats that ``convert`` reads, one module per format."""
