"""The bitstream of one JPEG: headers, restart segments, tiles. No files, no pixels, no torch."""
