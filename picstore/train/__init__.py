"""During training: plan → fetch → decode → augment → batch. The only part of picstore that imports torch."""

from picstore.errors import MissingDependency

try:
    import torch as _torch  # noqa: F401 - so that whatever of this package is used first says what is missing
except ModuleNotFoundError as error:
    raise MissingDependency("the loader needs PyTorch and torchvision: pip install 'picstore[torch]'") from error
