"""Internal: headers, segments, Huffman tables, lossless restart markers and cuts of a JPEG."""
