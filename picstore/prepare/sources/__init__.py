"""Formats that convert reads, a module each."""
