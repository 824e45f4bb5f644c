"""Torture runs: what kills, failing disks and flipped bits leave of data sets (docs/archive/torture-2026-11.md)."""
