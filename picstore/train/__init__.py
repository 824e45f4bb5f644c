"""During training: plan → fetch → decode → augment → batch. The only part of picstore that imports torch."""

from importlib.util import find_spec

from picstore.errors import MissingDependency

if find_spec("torch") is None:  # whatever of this package is used first says what is missing
    raise MissingDependency("the loader needs PyTorch and torchvision: pip install 'picstore[torch]'")
