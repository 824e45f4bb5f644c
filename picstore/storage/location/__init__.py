"""Folders and object stores with one interface."""
