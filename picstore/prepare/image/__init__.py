"""Conversion of an image of any format to a training JPEG."""
