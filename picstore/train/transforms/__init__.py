"""Transforms as values: parameters, geometry, color programs."""
