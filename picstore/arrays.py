"""Types of NumPy arrays, named after their dtype."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
I64: TypeAlias = npt.NDArray[np.int64]
Table: TypeAlias = npt.NDArray[np.void]  # NumPy array whose elements have named fields ("structured array").
U8: TypeAlias = npt.NDArray[np.uint8]
U16: TypeAlias = npt.NDArray[np.uint16]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]

AnyArray = TypeVar("AnyArray", bound=Array)


def read_only(array: AnyArray) -> AnyArray:
    """Make an array read-only in place, so that no object that shares it can change it, and return the array."""
    array.setflags(write=False)
    return array
