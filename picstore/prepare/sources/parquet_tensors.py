"""Arrays in a Parquet column, as nested lists or Arrow's tensors of a fixed shape, read as .npy files for maps."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from picstore.errors import ImageError


def is_tensor(type_: Any) -> bool:
    """Return whether an Arrow type is lists of lists of numbers, at most 3 deep, or a tensor of a fixed shape."""
    import pyarrow as pa

    if isinstance(type_, pa.FixedShapeTensorType):
        return True
    # If Hugging Face's library ``datasets`` is imported, Array2D is an extension type with a ``storage_type``.
    type_, depth = getattr(type_, "storage_type", type_), 0
    while hasattr(type_, "value_type") and pa.types.is_nested(type_) and not pa.types.is_map(type_):
        type_, depth = type_.value_type, depth + 1
    return depth in (2, 3) and bool(pa.types.is_primitive(type_))


def tensor_to_npy(scalar: Any) -> bytes:
    """Return a tensor (see :func:`is_tensor`) as a .npy file; raise ImageError if its lists differ in length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = scalar.value.values if isinstance(scalar, pa.ExtensionScalar) else scalar.values
    shape = [len(values)]
    while pa.types.is_nested(values.type):
        lengths = pc.list_value_length(values).unique().to_pylist()
        if len(lengths) != 1 or lengths[0] is None:
            raise ImageError("its lists have different lengths")
        shape.append(lengths[0])
        values = values.flatten()
    if values.null_count:
        raise ImageError("a value is null")
    order = None
    if isinstance(scalar.type, pa.FixedShapeTensorType):
        shape, order = scalar.type.shape, scalar.type.permutation
    out = io.BytesIO()
    array = values.to_numpy(zero_copy_only=False).reshape(shape)
    np.save(out, array.transpose(order or range(len(shape))), allow_pickle=False)
    return out.getvalue()
