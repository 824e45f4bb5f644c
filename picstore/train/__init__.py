"""Internal: training, as order → prefetch → decode → augment → batch; picstore's only package that imports torch."""

from importlib.util import find_spec

from picstore.errors import missing_extra

# Check for torch here, so that importing any part of this package raises an error that names the missing library.
if find_spec("torch") is None:
    raise missing_extra("the loader needs PyTorch and torchvision", "torch")
