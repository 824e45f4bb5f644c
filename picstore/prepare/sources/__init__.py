"""Sources: a module for each kind of thing that convert reads, which lists its inputs (docs/formats.md, "Sources")."""
