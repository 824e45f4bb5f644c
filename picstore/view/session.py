"""What a server holds: the data set, and what its pages share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from picstore.storage.dataset import Dataset
from picstore.view.kept import Kept
from picstore.view.records import Records

if TYPE_CHECKING:
    from picstore.view.drawn import Drawn
    from picstore.view.replay import Replay


@dataclass(frozen=True, slots=True)
class Session:
    """A data set, its records by filter, and images that were drawn.

    Attributes:
        recipe: as the command was given it, None for none.
        state: of a training's loader, None for none.
        nonce: tells addresses of pictures of this server from those of others, which browsers keep.
    """

    records: Records
    recipe: str | None = None
    state: Mapping[str, Any] | None = None
    kept: Kept[Drawn] = field(default_factory=Kept)
    nonce: str = field(default_factory=lambda: token_hex(4))
    _replays: list[Replay] = field(default_factory=list)

    @property
    def dataset(self) -> Dataset:
        return self.records.dataset

    def replay(self) -> Replay:
        """Trainings on the data set; made when it is first asked for, as it needs torch to be installed."""
        if not self._replays:
            from picstore.view.replay import Replay

            self._replays.append(Replay(self.dataset))
        return self._replays[0]
