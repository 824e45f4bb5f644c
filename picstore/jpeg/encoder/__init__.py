"""Encoding of pixels to baseline JPEGs."""
