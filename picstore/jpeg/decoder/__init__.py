"""Decoder for training JPEGs, with the pixels of libjpeg-turbo bit for bit."""
