"""An image of any format to a training JPEG."""
