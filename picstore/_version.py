"""Version of the package, which modules import from here rather than from the package's root."""

__version__ = "0.1.0"
