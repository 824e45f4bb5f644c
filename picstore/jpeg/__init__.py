"""Internal: one JPEG: headers, segments, Huffman tables, lossless restart markers, cuts."""
