"""Programs of colour: what happens to each image of a batch between resampling and the batch tensor.

A list of transforms becomes, for all images of a batch at once, a table of steps and their parameters; kernels run an
image's row of it. Names, parameters and meaning of the transforms, in ``photometric.py``, are those of
``torchvision.transforms.v2`` on uint8 tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from picstore import draw
from picstore.errors import UsageError
from picstore.train import codes
from picstore.train.blur import blur
from picstore.train.cached import cached_property
from picstore.train.geometry import Draws
from picstore.train.levels import convert, patterns_of
from picstore.train.noise import add_noise
from picstore.train.normals import standard_normals
from picstore.train.place import place_of
from picstore.train.pointwise import run_pointwise

I64: TypeAlias = npt.NDArray[np.int64]
_AS_IT_IS = (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)  # means and deviations that leave 0 … 1


class Finish(IntEnum):
    """The type that images have in the end; programs do not depend on it."""

    UINT8 = codes.BYTES
    FLOAT32 = codes.SINGLE
    FLOAT16 = codes.HALF
    BFLOAT16 = codes.BRAIN

    @classmethod
    def of(cls, dtype: object) -> Finish:
        """That of a ``torch.dtype``.

        Raises:
            UsageError: images cannot have this dtype.
        """
        name = str(dtype).removeprefix("torch.").upper()  # ours are torch's names
        if name not in cls.__members__:
            raise UsageError(f"dtype {dtype} is not possible for images; use uint8, float16, bfloat16 or float32")
        return cls[name]


# Arrays of bit patterns for each finish: their dtype, and which dtypes of the same size ``out`` may have.
_PATTERNS: dict[int, tuple[Any, tuple[Any, ...]]] = {
    Finish.UINT8: (np.uint8, (np.dtype(np.uint8),)),
    Finish.FLOAT32: (np.uint32, (np.dtype(np.float32), np.dtype(np.uint32))),
    Finish.FLOAT16: (np.uint16, (np.dtype(np.float16), np.dtype(np.uint16), np.dtype(np.int16))),
    Finish.BFLOAT16: (np.uint16, (np.dtype(np.uint16), np.dtype(np.int16))),
}


@dataclass(frozen=True, eq=False)
class Program:
    """Steps for n images, those that do nothing behind all others.

    Attributes:
        code: int64 (n, k), of ``codes.py``; in what ``compose_colour`` returns each row has one ``NORMALIZE``.
        value: float64 (n, k, 8), the steps' parameters.
        key: uint64 (n, k), of what is drawn pixel by pixel.
    """

    code: I64
    value: npt.NDArray[np.float64]
    key: npt.NDArray[np.uint64]

    @classmethod
    def of_step(cls, code: npt.ArrayLike, values: Sequence[npt.ArrayLike], *, key: Any = 0, count: int) -> Program:
        """One step for ``count`` images; each of code, values and key is a number or an array (count,)."""
        value = np.zeros((count, 1, codes.VALUES))
        for k, numbers in enumerate(values):
            value[:, 0, k] = numbers
        rows = np.broadcast_to(np.asarray(code, dtype=np.int64), (count,))[:, None]
        return cls(rows, value, np.broadcast_to(np.asarray(key, dtype=np.uint64), (count,))[:, None])

    @classmethod
    def chain(cls, programs: Sequence[Program]) -> Program:
        """Programs for the same images, one after the other."""
        code, value, key = (
            np.concatenate([getattr(program, name) for program in programs], axis=1)
            for name in ("code", "value", "key")
        )
        order = np.argsort(code == codes.NOTHING, axis=1, kind="stable")
        code = np.take_along_axis(code, order, axis=1)
        used = int((code != codes.NOTHING).sum(axis=1).max(initial=1))
        value = np.take_along_axis(value, order[:, :, None], axis=1)
        key = np.take_along_axis(key, order, axis=1)
        return cls(*(np.ascontiguousarray(part[:, :used]) for part in (code, value, key)))

    @classmethod
    def join(cls, programs: Sequence[Program], order: I64) -> Program:
        """Programs for different images as one: image i of it is image order[i] of all of them in turn."""
        width = max(program.code.shape[1] for program in programs)
        parts = []
        for name in ("code", "value", "key"):
            arrays = [getattr(program, name) for program in programs]
            padded = [np.zeros((len(array), width, *array.shape[2:]), array.dtype) for array in arrays]
            for target, array in zip(padded, arrays, strict=True):
                target[:, : array.shape[1]] = array
            parts.append(np.ascontiguousarray(np.concatenate(padded)[order]))
        return cls(*parts)

    @property
    def empty(self) -> bool:
        """Whether nothing happens to images of bytes."""
        return bool(self.code.shape[1] <= 1)

    @cached_property
    def _codes(self) -> list[list[int]]:
        """What ``code`` holds; lists are read ten times as fast as elements of an array."""
        codes_: list[list[int]] = self.code.tolist()
        return codes_

    def apply(self, slot: int, image: npt.NDArray[np.uint8], out: npt.NDArray[Any], finish: Finish) -> None:
        """Run the steps of image ``slot``: a kernel for each run of pointwise steps, noise and blur, without the GIL.

        Python takes 2 µs, and 1 µs for each kernel.

        Args:
            slot: number of the image.
            image: uint8 (3, H, W), C-contiguous; overwritten. May be ``out`` itself, and then, where the program is
                empty, have any strides.
            out: (3, H, W), any strides, uint8, float32 or, as its bits, 16-bit integers; otherwise separate memory.
            finish: what ``out`` holds.

        Raises:
            UsageError: an array has another type, shape or layout, or is empty.
        """
        steps = self._codes[slot]
        if image is out and finish == Finish.UINT8 and steps[0] == codes.NORMALIZE:
            return
        pattern, possible = _PATTERNS[finish]
        if image.dtype != np.uint8 or image.ndim != 3 or len(image) != 3 or not image.flags.c_contiguous:
            raise UsageError(f"image is {image.dtype} {image.shape}; give contiguous uint8 of shape (3, height, width)")
        if out.dtype not in possible or out.shape != image.shape or image.size == 0:
            raise UsageError(f"out is {out.dtype} {out.shape}; give {finish.name} {image.shape}, not empty")
        normalize = steps.index(codes.NORMALIZE)
        self._develop(slot, normalize, image)
        bits = out if out.dtype == pattern else out.view(pattern)
        if image is not out:
            convert(image, self.value, slot, normalize, int(finish), place_of(bits))
        for step in range(normalize + 1, len(steps)):
            if steps[step] != codes.NOTHING:
                self._erase(slot, step, int(finish), bits)

    def _develop(self, slot: int, end: int, image: npt.NDArray[np.uint8]) -> None:
        """The steps before ``end``, in place. Kernels apart, so that those that no transform needs are not compiled."""
        steps = self._codes[slot]
        step = 0
        while step < end:
            begin, code = step, steps[step]
            step += 1
            if code <= codes.LAST_POINTWISE:
                while step < end and steps[step] <= codes.LAST_POINTWISE:
                    step += 1
                run_pointwise(self.code, self.value, slot, begin, step, image)
            elif code == codes.NOISE:
                add_noise(self.value, self.key, slot, begin, image)
            elif code == codes.BLUR:
                blur(self.value, slot, begin, image)
            else:
                self._erase(slot, begin, codes.BYTES, image)

    def _erase(self, slot: int, step: int, kind: int, out: npt.NDArray[Any]) -> None:
        """Erase. Copying is left to NumPy, which needs no kernel for each type and layout."""
        left, top, right, bottom = self.value[slot, step, :4].astype(np.int64).tolist()
        part = out[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
        if self.code[slot, step] == codes.ERASE:
            colour = self.value[slot, step, 4:7].astype(np.float32)
            part[:] = patterns_of(colour, kind)[:, None, None]
        elif kind == codes.BYTES:
            levels = draw.bits(self.key[slot, step], np.arange(part.size)) >> np.uint64(56)
            part[:] = levels.reshape(part.shape)
        else:
            normals = standard_normals(int(self.key[slot, step]), part.size)
            part[:] = patterns_of(normals, kind).reshape(part.shape)


class ColourTransform:
    """One step of colour on a batch; what all transforms of ``photometric.py`` are.

    Attributes:
        normalises: whether values are no grey levels any more behind it.
        erases: whether it may stand behind one that normalises.
    """

    normalises = False
    erases = False

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        """The step for images of these sizes, int64 (n, 2), width first; as many draws for one as for any other."""
        raise NotImplementedError

    def check(self, *, normalised: bool) -> None:
        """Raise UsageError if this cannot work on grey levels, or, if ``normalised``, behind ``Normalize``."""


def compose_colour(transforms: Sequence[ColourTransform], sizes: I64, draws: Draws) -> Program:
    """Draw the parameters of all transforms for a batch.

    Args:
        transforms: in the order in which they apply; see ``check_colour``.
        sizes: int64 (n, 2), width and height of the images.
        draws: of those images.
    """
    count = len(sizes)
    programs = [transform(sizes, draws) for transform in transforms]
    if not normalises(transforms):
        programs.append(Program.of_step(codes.NORMALIZE, _AS_IT_IS, count=count))
    return Program.chain(programs)


def normalises(transforms: Sequence[ColourTransform]) -> bool:
    """Whether the images have to be floats because of a transform."""
    return any(transform.normalises for transform in transforms)


def check_colour(transforms: Sequence[ColourTransform]) -> None:
    """Check the order of a list of transforms of colour.

    Raises:
        UsageError: something other than ``RandomErasing`` stands behind ``Normalize``, or its value does not fit.
    """
    normalised = False
    for transform in transforms:
        name = type(transform).__name__
        if normalised and transform.normalises:
            raise UsageError("Normalize stands twice in the list of transforms; keep one")
        if normalised and not transform.erases:
            raise UsageError(
                f"{name} stands behind Normalize but works on grey levels; put it before Normalize"
                " (only RandomErasing and callables of your own may follow)"
            )
        transform.check(normalised=normalised)
        normalised = normalised or transform.normalises
