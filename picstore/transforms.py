"""Transforms, with the names of torchvision's ``transforms.v2``: ``import picstore.transforms as T``.

``picstore`` has the same names. A transform checks its arguments when it is created, and raises UsageError for an
invalid value. Probabilities are 0 to 1, sizes 1 to 32768 pixels.
"""

from __future__ import annotations

from picstore import _public

_MODULES_OF = _public.modules_by_name(_public.TRANSFORMS)
__getattr__ = _public.load_lazily(__name__, globals(), _MODULES_OF)
__all__ = list(_MODULES_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
