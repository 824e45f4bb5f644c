"""Maps (values on an image's pixels), read exactly from PNG, TIFF, OpenEXR and NumPy files."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import UnidentifiedImageError

from picstore.arrays import Array
from picstore.errors import ImageError, missing_extra
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image.exif_orientation import CoordinateMap, read_orientation
from picstore.prepare.image.size_limits import check_size, open_by_pillow
from picstore.prepare.image.tiff import read_samples
from picstore.prepare.image.tiff_layout import STARTS
from picstore.storage.format.maps import MAGIC, MapSpec, can_hold, decode_map, encode_map, read_form

_PNG, _NPY, _EXR = b"\x89PNG\r\n\x1a\n", b"\x93NUMPY", b"\x76\x2f\x31\x01"
_SHOWN = 8  # largest number of OpenEXR channels that an error message lists
_WITH_ALPHA = ("PNG", "WEBP", "TIFF", "GIF", "BMP", "ICO")
# Largest number of pixels of a map. It equals the default limit for images, because a map has the size of its image.
_MAX_PIXELS = 1 << 28
_NPY_VERSIONS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# For each EXIF orientation except 1, the function that turns an image's values (h, w, channels) upright.
_TO_UPRIGHT: dict[int, Callable[[Array], Array]] = {
    2: lambda values: values[:, ::-1],
    3: lambda values: values[::-1, ::-1],
    4: lambda values: values[::-1],
    5: lambda values: values.swapaxes(0, 1),
    6: lambda values: values.swapaxes(0, 1)[:, ::-1],
    7: lambda values: values.swapaxes(0, 1)[::-1, ::-1],
    8: lambda values: values.swapaxes(0, 1)[::-1],
}


def make_map(name: str, data: bytes | Array, spec: MapSpec, image: CoordinateMap) -> bytes:
    """Convert a map to its stored form, turned upright and resized like its image.

    A map that has the size of the image before rotation is turned upright, unless the rotated image has the same size.
    A map that already has the stored image's size is not resized. Resizing takes the value of the nearest pixel.

    Args:
        data: bytes of a map file, or the values, (h, w) or (h, w, channels).

    Raises:
        ImageError: the map cannot be read exactly, its size differs from the image's, or the dtype of ``spec`` cannot
            hold the values.
    """
    try:
        values = cast_map(read_values(data) if isinstance(data, bytes) else as_values(data), spec)
        size = values.shape[1], values.shape[0]
        _require_size(size, image)
        if size == image.raw_size != image.upright_size:
            values = _TO_UPRIGHT[image.orientation](values)
        width, height = image.stored_size
        if values.shape[:2] != (height, width):
            sides = zip((height, width), values.shape[:2], strict=True)
            rows, columns = ((2 * np.arange(count) + 1) * of // (2 * count) for count, of in sides)
            values = values[rows[:, None], columns]
        given = data if isinstance(data, bytes) and size == (width, height) and _is_stored_form(data, spec) else b""
        if given and spec.dtype != "uint16":
            return given
        encoded = encode_map(np.ascontiguousarray(values))
        # Keep the given uint16 file if ``encode_map`` chose the same format (PNG or blocks), as the first bytes tell.
        return given if given[:4] == encoded[:4] else encoded
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error


def cast_map(values: Array, spec: MapSpec) -> Array:
    """Convert values (h, w, channels) to ``spec.dtype``; raise ImageError if dtype or number of channels do not fit.

    Floats are rounded if ``spec.dtype`` is a smaller float type; integers that would be rounded raise ImageError.
    """
    if values.ndim != 3 or values.shape[2] != spec.channels:
        channels = values.shape[2] if values.ndim == 3 else f"{values.ndim} dimensions and no"
        raise ImageError(f"has {channels} channels, the first map had {spec.channels}")
    dtype = np.dtype(spec.dtype)
    if values.dtype == dtype:
        return np.ascontiguousarray(values)
    if values.dtype.kind not in "buif":
        raise ImageError(f"holds {values.dtype}, not numbers")
    if dtype.kind == "u" and values.dtype.kind == "f":
        if np.isnan(values).any():
            raise ImageError(f"holds NaN, which {spec.dtype} has no number for; give dtype=float32")
        if (values != np.floor(values)).any():
            raise ImageError(f"holds fractions, which {spec.dtype} would lose; give dtype=float32")
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    for extreme in (finite.min(), finite.max()) if finite.size else ():
        if not can_hold(dtype, float(extreme)):
            raise ImageError(f"holds {float(extreme):g}, which {spec.dtype} cannot")
    cast = values.astype(dtype)
    if dtype.kind == "f" and values.dtype.kind in "ui" and (cast.astype(np.float64) != values).any():
        raise ImageError(f"holds whole numbers that {spec.dtype} would round; give another dtype")
    return np.ascontiguousarray(cast)


def _require_size(size: tuple[int, int], image: CoordinateMap) -> None:
    if size not in (image.upright_size, image.raw_size, image.stored_size):
        width, height = image.upright_size
        raise ImageError(f"has {size[0]} × {size[1]} pixels, its image {width} × {height}")


def _is_stored_form(data: bytes, spec: MapSpec) -> bool:
    try:
        return read_form(data)[:2] == (spec.dtype, spec.channels)
    except ImageError:
        return False


def as_values(values: Array) -> Array:
    """Return a map (h, w) or (h, w, channels) as (h, w, channels); raise ImageError for another or an empty shape."""
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise ImageError(f"has the shape {values.shape}; a map has (height, width) or (height, width, channels)")
    return values if values.ndim == 3 else values[:, :, None]


def read_values(data: bytes) -> Array:
    """Read the values of a map file exactly, as (h, w, channels).

    Raises:
        ImageError: the file is not a map, is damaged, or cannot be read exactly.
        MissingDependency: OpenImageIO, which OpenEXR files need, is not installed.
    """
    with foreign_errors("cannot be read as a map"):
        if data.startswith(_PNG):
            return as_values(_read_png(data))
        if data.startswith(STARTS):
            return as_values(read_samples(data, max_pixels=_MAX_PIXELS))
        if data.startswith(_NPY):
            return as_values(_read_npy(data))
        if data.startswith(_EXR):
            return as_values(_read_exr(data))
        if data.startswith(MAGIC):  # ``picstore export`` wrote this map.
            return decode_map(data)
    raise ImageError("is not a PNG, TIFF, OpenEXR or .npy file, which maps are read from")


def read_alpha(data: bytes, dtype: str) -> Array | None:
    """Read the alpha (h, w) of an image file's first frame, turned upright; return None for an image without alpha.

    Raise ImageError if the alpha has 16 bits and ``dtype`` is uint8, or if it cannot be read exactly.
    """
    with foreign_errors("alpha cannot be read"):
        try:
            image = open_by_pillow(data, _WITH_ALPHA)
        except UnidentifiedImageError:
            return None  # The file has another format, or damage that decoding will report.
        with image:
            check_size(*image.size, max_pixels=_MAX_PIXELS)
            if not image.has_transparency_data:
                return None
            orientation, wide = read_orientation(image), image.format == "PNG" and data[24] == 16
            if wide:
                values = _read_png_of_16_bits(data, "RGBA")[:, :, 3] if data[25] == 6 else None
            elif image.format == "TIFF":
                values = read_samples(data, max_pixels=_MAX_PIXELS)[:, :, -1] if image.mode == "RGBA" else None
            else:
                values = np.asarray(image.convert("RGBA").getchannel("A"))
    if values is None or values.dtype.name not in ("uint8", dtype):
        raise ImageError(f"its alpha of {'16' if wide else 'these'} bits is not kept as {dtype}")
    values = values.astype(dtype) * (257 if dtype == "uint16" and values.dtype == np.uint8 else 1)
    return _TO_UPRIGHT[orientation](values[:, :, None])[:, :, 0] if orientation > 1 else values


def _read_png(data: bytes) -> Array:
    from PIL import PngImagePlugin

    with PngImagePlugin.PngImageFile(io.BytesIO(data)) as image:
        check_size(*image.size, max_pixels=_MAX_PIXELS)
        bits, color = data[24], data[25]
        if bits == 16 and color in (2, 6):
            return _read_png_of_16_bits(data, "RGB" if color == 2 else "RGBA")
        if (color, bits) == (4, 8):
            return np.asarray(image)
        if bits < 8 and color != 3:
            raise ImageError(f"is a grey PNG of {bits} bits, which decoders scale; write 8 or 16 bits")
        if bits == 16 and color == 4:
            raise ImageError("is a grey PNG of 16 bits with alpha, which is not read exactly; leave out the alpha")
        values = np.asarray(image)
        return values.astype(np.uint16) if bits == 16 else values


def _read_png_of_16_bits(data: bytes, mode: str) -> Array:
    """Read a color PNG of 16 bits per channel in two passes, because Pillow reads one byte of each value at a time."""
    from PIL import PngImagePlugin

    halves = []
    for order in ("B", "L"):
        with PngImagePlugin.PngImageFile(io.BytesIO(data)) as image:
            image.tile = [each._replace(args=f"{mode};16{order}") for each in image.tile]
            halves.append(np.asarray(image).astype(np.uint16))
    return halves[0] << 8 | halves[1]


def _read_npy(data: bytes) -> Array:
    file = io.BytesIO(data)
    read_header = _NPY_VERSIONS.get(np.lib.format.read_magic(file))
    if read_header is None:
        raise ImageError("is a .npy file of an unknown version")
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject or dtype.kind not in "buif":
        raise ImageError(f"is a .npy file of {dtype}, not of numbers")
    if int(np.prod(shape, dtype=object)) * dtype.itemsize != len(data) - file.tell():
        raise ImageError(f"is a .npy file of shape {shape} in {len(data):,} bytes")
    flat = np.frombuffer(data, dtype, offset=file.tell()).astype(dtype.newbyteorder("="))
    values: Array = flat.reshape(shape, order="F" if is_fortran else "C")
    return values


def _read_exr(data: bytes) -> Array:
    """Read an OpenEXR file of one part: half as float16, float as float32, uint as uint32.

    The file must have one layer. Its channels are the first one to four of R, G, B, A or of X, Y, Z, W; the returned
    values have this order. A single channel may have any name.
    """
    try:
        import OpenImageIO
    except ImportError as error:
        raise missing_extra("an OpenEXR file needs OpenImageIO", "exr") from error
    # OpenImageIO's Python functions read from paths only.
    with tempfile.NamedTemporaryFile(prefix="picstore-", suffix=".exr") as file:
        file.write(data)
        file.flush()
        reader = OpenImageIO.ImageInput.open(file.name)
        if reader is None:
            raise OSError(OpenImageIO.geterror().replace(f" ({file.name})", ""))
        spec = reader.spec()
        check_size(spec.width, spec.height, max_pixels=_MAX_PIXELS)
        if spec.deep or spec.get_int_attribute("oiio:subimages", 1) > 1:
            raise ImageError("is a deep OpenEXR file or one of several parts; write one flat part")
        display = spec.full_x, spec.full_y, spec.full_width, spec.full_height
        if (spec.x, spec.y, spec.width, spec.height) != display:
            raise ImageError("is an OpenEXR file whose data window is not its display window; write all pixels")
        order = _exr_order(list(spec.channelnames))
        formats = {str(each) for each in spec.channelformats} or {str(spec.format)}
        if not formats <= {"half", "float"} and formats != {"uint"}:
            raise ImageError("is an OpenEXR file of integers and floats; write channels of one type")
        values = reader.read_image(0, 0, 0, spec.nchannels, OpenImageIO.UNKNOWN)
        if values is None:
            raise OSError(reader.geterror())
    return np.asarray(values)[:, :, order]


def _exr_order(names: list[str]) -> list[int]:
    """Return the indices of channels in the order R, G, B, A or X, Y, Z, W; raise ImageError for other names."""
    if len(names) == 1:
        return [0]
    layers = {name.rpartition(".")[0] for name in names}
    last = [name.rpartition(".")[2].upper() for name in names]
    for order in ("RGBA", "XYZW"):
        if len(layers) == 1 and sorted(last) == sorted(order[: len(last)]):
            return [last.index(each) for each in order[: len(last)]]
    listed = ", ".join(map(repr, names[:_SHOWN])) + ", …" * (len(names) > _SHOWN)
    raise ImageError(
        f"is an OpenEXR file with the channels {listed}; write one channel, or the first of R, G, B, A or of X, Y, Z, W"
    )
