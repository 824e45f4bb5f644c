"""Internal: figures of images and histograms, HTML in notebooks, and progress and text on terminals."""
