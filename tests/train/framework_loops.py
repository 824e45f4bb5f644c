"""Training loops of several libraries, each stopped twice and resumed by new objects; ranks note what they train on.

    torchrun --nproc-per-node 2 framework_loops.py DATASET FOLDER

For each loop rank r writes FOLDER/LOOP.r.json: ids and CRC of the images of each step.
"""

from __future__ import annotations

import json
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import picstore

EPOCHS, STEPS, BATCH_SIZE = 2, 5, 4  # of 40 records on 2 ranks
STOPS = (3, 7)  # steps after which a loop is stopped, in the middle of both epochs
OPTIONS: dict[str, Any] = {
    "transform": [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()],
    "threads": 1,
    "isolate": False,
}
Seen = tuple[list[int], int]

make_loader = partial(picstore.Loader, batch_size=BATCH_SIZE, **OPTIONS)


def note(ids: torch.Tensor, images: torch.Tensor) -> Seen:
    """What is compared of a batch."""
    return ids.tolist(), zlib.crc32(images.numpy().tobytes())


class Model(torch.nn.Module):
    """A model of one weight that notes its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.seen: list[Seen] = []

    def forward(self, images: torch.Tensor, labels: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, as a model of transformers returns it."""
        self.seen.append(note(ids, images))
        return {"loss": self.weight * images.float().mean()}


def train(batches: Iterable[dict[str, torch.Tensor]], model: Any, optimizer: Any, steps: int) -> None:
    """At most so many steps of an epoch."""
    if steps > 0:
        for step, batch in enumerate(batches, start=1):
            model(**batch)["loss"].backward()
            optimizer.step()
            if step == steps:
                return


def ddp(path: str, folder: Path, start: int, stop: int, model: Model) -> None:
    """The loader's own state, and the ``set_epoch`` of scripts for a DistributedSampler."""
    loader, state = make_loader(path), folder / "ddp.json"
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    if start:
        loader.load_state_dict(json.loads(state.read_text()))
    for epoch in range(start // STEPS, EPOCHS):
        loader.sampler.set_epoch(epoch)
        steps = stop - max(start, epoch * STEPS)
        train((b.asdict() for b in loader), wrapped, torch.optim.SGD(wrapped.parameters()), steps)
        if stop <= (epoch + 1) * STEPS:
            break
    dist.barrier()
    if dist.get_rank() == 0:
        state.write_text(json.dumps(loader.state_dict()))
    dist.barrier()


def accelerate(path: str, folder: Path, start: int, stop: int, model: Model) -> None:
    """A loader of each rank, which ``prepare`` lets through, and its state in Accelerate's checkpoints."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = make_loader(path)
    wrapped, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    if start:
        accelerator.load_state(str(folder / "accelerate"))
    for epoch in range(start // STEPS, EPOCHS):
        train((b.asdict() for b in loader), wrapped, optimizer, stop - max(start, epoch * STEPS))
        if stop <= (epoch + 1) * STEPS:
            break
    accelerator.save_state(str(folder / "accelerate"))


def dispatch(path: str, folder: Path, start: int, stop: int, model: Model) -> None:
    """The first process makes all batches; a resumed epoch skips those that were taken."""
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    loader = make_loader(path, rank=0, world_size=1)
    batches = torch.utils.data.DataLoader(loader, batch_size=None, collate_fn=picstore.Batch.asdict)
    wrapped, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters()), batches)
    for epoch in range(start // STEPS, EPOCHS):
        batches.set_epoch(epoch)
        skipped = max(0, start - epoch * STEPS)
        rest = skip_first_batches(batches, skipped) if skipped else batches
        train(rest, wrapped, optimizer, stop - max(start, epoch * STEPS))
        if stop <= (epoch + 1) * STEPS:
            break


def trainer(path: str, folder: Path, start: int, stop: int, model: Model) -> None:
    """The Trainer of transformers, as examples/train_trainer.py gives it a loader."""
    from train_trainer import LoaderTrainer
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        str(folder / "trainer"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        max_steps=stop,
        save_steps=stop,
        save_strategy="steps",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    run = LoaderTrainer(model, arguments, loader=make_loader(path), to_inputs=picstore.Batch.asdict)
    run.train(resume_from_checkpoint=str(folder / "trainer" / f"checkpoint-{start}") if start else None)


def lightning(path: str, folder: Path, start: int, stop: int, model: Model) -> None:
    """A data module, which asks the strategy for its rank."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: picstore.Batch, number: int) -> torch.Tensor:
            return self.model(**batch.asdict())["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters())

    def make(*, rank: int, world_size: int, device: torch.device) -> picstore.Loader:
        return make_loader(path, rank=rank, world_size=world_size, device=device)

    run = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=stop,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = picstore.lightning.DataModule(train=make)
    run.fit(Module(), datamodule=data, ckpt_path=folder / "lightning.ckpt" if start else None)
    run.save_checkpoint(folder / "lightning.ckpt")


LOOPS: tuple[Callable[..., None], ...] = (ddp, accelerate, dispatch, trainer, lightning)


def main(path: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for loop in LOOPS:
        seen: list[Seen] = []
        for start, stop in zip((0, *STOPS), (*STOPS, EPOCHS * STEPS), strict=True):
            model = Model()
            loop(path, folder, start, stop, model)
            seen += model.seen
        (folder / f"{loop.__name__}.{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # those of the libraries
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    main(sys.argv[1], Path(sys.argv[2]))
