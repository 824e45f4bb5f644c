"""Large photographs, cropped and resized: from memory, a slow disk and an object store (docs/large-images.md)."""
