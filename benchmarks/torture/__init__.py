"""Torture runs: what kills, failing disks and flipped bits leave of data sets (docs/reliability.md)."""
