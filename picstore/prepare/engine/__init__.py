"""Processes that run tasks, on this machine or on a Ray cluster."""
