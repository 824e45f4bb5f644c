"""One JPEG: headers, segments, Huffman tables, lossless restart markers, cuts."""
