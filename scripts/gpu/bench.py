"""What all parts share: the device, the photographs, the folder of data sets, and how large things are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import picstore
from gpu.device import Device
from gpu.pictures import Photographs


@dataclass(frozen=True)
class Bench:
    """The settings of a run.

    Attributes:
        work: the folder in which ``pictures.write_all`` has been.
        tiny: everything is as small as possible, to try the script out.
    """

    device: Device
    photographs: Photographs
    work: Path
    tiny: bool

    @property
    def size(self) -> int:
        """Pixels of a side of the outputs."""
        return 8 if self.tiny else 224

    @property
    def batch(self) -> int:
        """Images of a batch."""
        return 2 if self.tiny else 256

    @property
    def standard(self) -> list[object]:
        """The transforms of the standard job."""
        return [picstore.RandomResizedCrop(self.size), picstore.RandomHorizontalFlip()]
