r"""Train on processes that come and go: a lost one costs the steps since the last checkpoint, and changes no batch.

    torchrun --nnodes 2:8 --nproc-per-node 8 --max-restarts 100 \
        --rdzv-backend c10d --rdzv-endpoint host1:29400 --rdzv-id run1 \
        examples/train_elastic.py train-shuffled --checkpoint /shared/run1.pt

When a process is lost, or a machine joins, torchrun ends all processes and starts this program anew on the present
ones. It goes on at the last checkpoint, with the same global batches for any number of processes.
"""

from __future__ import annotations

import argparse
import os
import zlib
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_resnet import MEAN, STD, make_model, save

import picstore


def report(step: int, batch: picstore.Batch, loss: torch.Tensor) -> None:
    """Print a step's loss, and a digest of the global batch that no number of processes changes."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, batch.ids.tolist())
    mean = loss.detach() / len(parts)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        ids = zlib.crc32(repr(sorted(chain.from_iterable(parts))).encode())
        print(f"step {step} ranks {len(parts)} ids {ids:08x} loss {mean.item():.6f}", flush=True)


def main() -> None:
    options = parse()
    dist.init_process_group(options.backend)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if options.backend == "nccl" else "cpu"
    if options.backend == "nccl":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    # begin training
    loader = picstore.Loader(
        options.dataset,
        global_batch_size=options.global_batch,
        transform=[
            picstore.RandomResizedCrop(options.size),
            picstore.RandomHorizontalFlip(),
            picstore.Normalize(MEAN, STD),
        ],
        device=device,
    )
    model = DistributedDataParallel(make_model(options.model, len(loader.dataset.classes)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    step = 0

    def save_checkpoint() -> None:
        if dist.get_rank() == 0:
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            save(options.checkpoint, step=step, **{name: part.state_dict() for name, part in parts.items()})

    if options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    else:
        save_checkpoint()  # a process that is lost before the next one changes neither weights nor order

    while step < options.steps:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch.images), batch.labels) * batch.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            report(step, batch, loss)
            if step % options.every == 0:
                save_checkpoint()
            if step == options.steps:
                break
    # end training
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a file that all machines see")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--backend", default="nccl", help="gloo for CPUs")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--global-batch", type=int, default=1024)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
