"""Data module for Lightning: creates Loaders for a trainer's ranks and devices, and saves positions in checkpoints."""

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
    """Data module of a Lightning trainer; each process creates its own Loaders, for its rank and device.

    Lightning's checkpoints hold the position of the training loader. ``trainer.fit(..., ckpt_path=...)`` resumes with
    the next batch, even if the number of processes has changed (see :meth:`picstore.Loader.load_state_dict`). Without a
    checkpoint, the loaders start at the trainer's epoch.

    Args:
        train, val, test, predict: functions that return a loader for the keyword arguments ``rank``, ``world_size`` and
            ``device``, such as ``functools.partial(picstore.Loader, "train", batch_size=256)``. Arguments in the
            partial have precedence.

    Attributes:
        loaders: latest loader of each stage, by name: ``"train"``, ``"val"``, ``"test"``, ``"predict"``.

    Raises:
        UsageError: a loader that the trainer requests has no length.
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
        # State from a checkpoint, from which the next training loader that the trainer requests will resume.
        self._to_load: Mapping[str, Any] | None = None
        for stage, make in (("train", train), ("val", val), ("test", test), ("predict", predict)):
            if make is not None:
                # Define ``train_dataloader`` … only for given stages, because Lightning warns of unused dataloaders.
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
        if self.trainer is None:
            return {}
        shard = self.trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        device = self.trainer.strategy.root_device
        return {"rank": shard["rank"], "world_size": shard["num_replicas"], "device": device}

    def state_dict(self) -> dict[str, Any]:
        """Return the training loader's state, which includes its position; Lightning writes it to checkpoints."""
        return {"train": self.loaders["train"].state_dict()} if "train" in self.loaders else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state; the next training loader resumes at the position in it."""
        self._to_load = state_dict.get("train")

    def teardown(self, stage: str) -> None:
        """End the threads and processes of the loaders; they keep their positions and can be iterated over again."""
        # A state that no training loader has taken is from a checkpoint that was loaded for a test; forget it.
        self._to_load = None
        for loader in self.loaders.values():
            loader.close()
