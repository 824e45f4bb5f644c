"""Lightning's data module of loaders: ranks and devices of the trainer, positions in its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from picstore.errors import UsageError, missing_extra
from picstore.train.loader import Loader
from picstore.train.mux import DataMux

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise missing_extra("picstore.lightning needs Lightning", "lightning") from error

MakeLoader: TypeAlias = Callable[..., Loader | DataMux]


class DataModule(LightningDataModule):
    """Loaders for a Lightning trainer, each made on every process of it, with its rank and on its device.

    Lightning's checkpoints hold the position of the loader for training; ``trainer.fit(..., ckpt_path=...)`` goes on
    with the batch that follows, also on another number of processes (as :meth:`picstore.Loader.load_state_dict`).
    Without a checkpoint the loaders' epochs are the trainer's.

    Args:
        train, val, test, predict: return a loader when called with ``rank``, ``world_size`` and ``device``:
            ``functools.partial(picstore.Loader, "train", batch_size=256)``. What a ``partial`` holds of these three
            has precedence.

    Attributes:
        loaders: the newest ones by stage: ``"train"``, ``"val"``, ``"test"``, ``"predict"``.

    Raises:
        UsageError: a loader that the trainer asks for has no length.
    """

    def __init__(
        self,
        *,
        train: MakeLoader | None = None,
        val: MakeLoader | None = None,
        test: MakeLoader | None = None,
        predict: MakeLoader | None = None,
    ) -> None:
        super().__init__()
        self.loaders: dict[str, Loader | DataMux] = {}
        self._to_load: Mapping[str, Any] | None = None  # state of the next loader for training
        for stage, make in (("train", train), ("val", val), ("test", test), ("predict", predict)):
            if make is not None:  # Lightning warns of a data module with a method that the model has no use for
                setattr(self, f"{stage}_dataloader", partial(self._make_loader, stage, make))

    def _make_loader(self, stage: str, make: MakeLoader) -> Loader | DataMux:
        if stage in self.loaders:
            self.loaders[stage].close()
        given = make.keywords if isinstance(make, partial) else {}
        loader = make(**{name: value for name, value in self._placement().items() if name not in given})
        try:
            len(loader)
        except TypeError as error:
            raise UsageError(
                f"{stage}: the loader has no length, and Lightning's checkpoints count batches that it takes ahead as "
                "trained; give DataMux(epoch_batches=)"
            ) from error
        if stage == "train" and self._to_load is not None:
            loader.load_state_dict(self._to_load)
            self._to_load = None
        self.loaders[stage] = loader
        return loader

    def _placement(self) -> dict[str, Any]:
        """Arguments of a loader on this process of the trainer; none without a trainer."""
        if self.trainer is None:
            return {}
        shard = self.trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        device = self.trainer.strategy.root_device
        return {"rank": shard["rank"], "world_size": shard["num_replicas"], "device": device}

    def state_dict(self) -> dict[str, Any]:
        """The position of the loader for training, which Lightning writes to its checkpoints."""
        return {"train": self.loaders["train"].state_dict()} if "train" in self.loaders else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next loader for training go on at a checkpoint's position."""
        self._to_load = state_dict.get("train")

    def teardown(self, stage: str) -> None:
        """End the loaders' threads and processes; positions stay, and iterating goes on."""
        self._to_load = None  # of a checkpoint that was loaded for a test
        for loader in self.loaders.values():
            loader.close()
