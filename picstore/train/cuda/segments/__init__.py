"""JPEG decoding on a GPU with a lane for each restart segment, without nvJPEG: the pixels of the CPU's decoder."""
