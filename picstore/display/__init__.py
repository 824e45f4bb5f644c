"""Internal: how images, histograms and facts are drawn: as figures of matplotlib, and as HTML in a notebook."""
