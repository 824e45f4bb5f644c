"""Functions that tests map over the images of a dataset, in a module that processes import."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch


def mean(batch: Any) -> torch.Tensor:
    """A number that depends on the image alone, not on its batch: an integer sum, divided."""
    return batch.images.flatten(1).sum(1, dtype=torch.int64) / batch.images[0].numel()


class Interrupted(BaseException):
    """What ends a run as Ctrl-C does."""


class Scorer:
    """``mean``, which raises for images whose ids it is given, and ends the run at a call.

    Attributes:
        seen: ids of each call's batch.
    """

    def __init__(self, failing: Any = (), end_at: int | None = None, end: Any = None) -> None:
        self.failing, self.end_at, self.end = set(failing), end_at, end or Interrupted
        self.seen: list[list[int]] = []

    def __call__(self, batch: Any) -> torch.Tensor:
        ids = batch.ids.tolist()
        self.seen.append(ids)
        if len(self.seen) == self.end_at:
            raise self.end
        if bad := self.failing.intersection(ids):
            batch.images.zero_()  # A second try must get the image as it is.
            raise ValueError(f"no value for {min(bad)}")
        return mean(batch)


def die_at_call_8(batch: Any) -> torch.Tensor:
    """``mean``, which notes the ids of each call in the file that $MAPPED names, and kills its process once."""
    file = Path(os.environ["MAPPED"])
    with file.open("a") as calls:
        print(*batch.ids.tolist(), file=calls)
    if len(file.read_text().splitlines()) == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return mean(batch)
