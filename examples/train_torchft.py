"""Train on replicas that come and go from step to step, with torchft: nothing restarts, and no batch changes.

    torchft_lighthouse --min_replicas 2 --bind [::]:29510
    TORCHFT_LIGHTHOUSE=http://host1:29510 python examples/train_torchft.py train-shuffled --replica 0 --device cuda:0
    TORCHFT_LIGHTHOUSE=http://host1:29510 python examples/train_torchft.py train-shuffled --replica 1 --device cuda:1

The replicas that are there share the global batch of a step. If one of them is lost meanwhile, the others make the step
again. One that comes back gets weights and position from another. torchft is not among picstore's dependencies.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain, repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from train_resnet import MEAN, STD, make_model

import picstore


class ReplicaBatches:
    """The batches of a replica, whose rank and world size may change before each step."""

    def __init__(self, make_loader: Callable[[int, int], picstore.Loader]) -> None:
        self.make_loader, self.ranks = make_loader, (0, 1)
        self.loader = make_loader(*self.ranks)
        self.state = self.loader.state_dict()  # after the last step that was made
        self.batches: Iterator[picstore.Batch] | None = None  # None if they do not go on at the state

    def take(self, rank: int, world_size: int) -> picstore.Batch:
        """The rank's part of the next global batch."""
        if self.batches is None or self.ranks != (rank, world_size):
            self.loader.close()
            self.ranks = rank, world_size
            self.loader = self.make_loader(*self.ranks)
            self.loader.load_state_dict(self.state)
            self.batches = chain.from_iterable(repeat(self.loader))  # epoch after epoch
        return next(self.batches)

    def end_step(self, *, made: bool) -> None:
        """Go on to the next global batch, or take the same one again if the step was not made."""
        if made:
            self.state = self.loader.state_dict()
        else:
            self.batches = None

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.batches = state, None


def train(manager: Any, batches: ReplicaBatches, model: nn.Module, optimizer: torch.optim.Optimizer, last: int) -> None:
    """Make the steps up to the last one, together with the replicas that torchft's manager finds for each."""
    while manager.current_step() < last:
        manager.start_quorum()
        rank, world_size = manager.participating_rank(), manager.num_participants()
        batch = batches.take(rank, world_size)
        loss = nn.functional.cross_entropy(model(batch.images), batch.labels) * batch.weight
        optimizer.zero_grad()
        loss.backward()
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()
        made = manager.should_commit()
        if made:
            optimizer.step()
            print(f"step {manager.current_step()} rank {rank} of {world_size} loss {loss.item():.6f}", flush=True)
        batches.end_step(made=made)


def main() -> None:
    import torchft

    options = parse()
    torch.manual_seed(0)
    dataset = picstore.Dataset(options.dataset)
    transform = [
        picstore.RandomResizedCrop(options.size),
        picstore.RandomHorizontalFlip(),
        picstore.Normalize(MEAN, STD),
    ]

    def make_loader(rank: int, world_size: int) -> picstore.Loader:
        return picstore.Loader(
            dataset,
            global_batch_size=options.global_batch,
            transform=transform,
            rank=rank,
            world_size=world_size,
            device=options.device,
            isolate=False,  # a process of its own would take seconds to start
        )

    batches = ReplicaBatches(make_loader)
    model = make_model(options.model, len(dataset.classes)).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=(torchft.ProcessGroupNCCL if options.device.startswith("cuda") else torchft.ProcessGroupGloo)(),
        min_replica_size=2,
        load_state_dict=None,
        state_dict=None,
        use_async_quorum=False,  # who is there must be known before a batch is taken
        replica_id=str(options.replica),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        timeout=timedelta(seconds=30),
    )
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "batches": batches}
    for name, part in parts.items():
        manager.register_state_dict_fn(name, part.load_state_dict, part.state_dict)
    train(manager, batches, model, optimizer, options.steps)
    manager.shutdown()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--replica", type=int, default=0, help="the number of this replica")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--global-batch", type=int, default=1024)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
