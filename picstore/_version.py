"""Version of the package; modules of picstore import it from this module rather than from the package ``picstore``."""

__version__ = "0.1.0"
