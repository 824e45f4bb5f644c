"""During training: plan → fetch → decode → augment → batch. The only part of picstore that imports torch."""
