"""Formats that export writes, a module each."""
