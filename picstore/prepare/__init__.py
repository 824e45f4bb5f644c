"""Before training: source → reencode → pack → shuffle. No torch."""
