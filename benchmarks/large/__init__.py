"""Large photographs, cropped and resized, from memory, a disk and a store (docs/archive/large-images-2026-11.md)."""
