"""Train on several processes with DistributedDataParallel, and evaluate every image exactly once.

    torchrun --nproc-per-node 4 examples/train_ddp.py train-shuffled val --backend nccl

The loader asks torch.distributed for its rank. Every rank has the same number of batches, so none waits for another.
With the same global batch and lanes the same images make the g-th step for any number of processes.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_resnet import MEAN, STD, make_model

import picstore


def train(loader: picstore.Loader, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One epoch; prints the mean loss of each global batch."""
    model.train()
    for step, batch in enumerate(loader):
        loss = nn.functional.cross_entropy(model(batch.images), batch.labels) * batch.weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.6f}", flush=True)


@torch.no_grad()
def evaluate(loader: picstore.Loader, model: nn.Module) -> tuple[int, int]:
    """How many images there are, and of how many the class was found, over all ranks."""
    model.eval()
    seen = right = 0
    for images, labels in loader:
        seen += len(labels)
        right += (model(images).argmax(1) == labels).sum()
    counts = torch.tensor([seen, right], device=next(model.parameters()).device)
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("validation")
    parser.add_argument("--backend", default="nccl", help="gloo for CPUs")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--global-batch", type=int, default=1024)
    parser.add_argument("--lanes", type=int, help="of the order; by default a multiple of the processes")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.5)
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if options.backend == "nccl" else "cpu"
    torch.manual_seed(0)
    # begin loaders
    size, normalize = options.size, picstore.Normalize(MEAN, STD)
    loader = picstore.Loader(
        options.train,
        global_batch_size=options.global_batch,
        transform=[picstore.RandomResizedCrop(size), picstore.RandomHorizontalFlip(), normalize],
        lanes=options.lanes,
        device=device,
    )
    validation = picstore.Loader(
        options.validation,
        global_batch_size=options.global_batch,
        transform=[picstore.Resize(size * 8 // 7), picstore.CenterCrop(size), normalize],
        shuffle=False,
        drop_last=False,
        device=device,
    )
    model = DistributedDataParallel(make_model(options.model, len(loader.dataset.classes)).to(device))
    # end loaders
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    for _ in range(options.epochs):
        train(loader, model, optimizer)
        images, right = evaluate(validation, model)
        if dist.get_rank() == 0:
            print(f"evaluated {images} images, {right} right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
