"""Version of the package, apart from its root so that modules inside need not import that."""

__version__ = "0.1.0"
