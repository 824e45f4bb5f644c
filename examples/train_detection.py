"""Train a small detector as DETR does: queries, boxes matched one to one (Carion et al., ECCV 2020).

    python examples/train_detection.py coco-shuffled --device cuda

Images of a batch differ in size, as do their numbers of objects: batches are padded here and masked.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional
from torchvision.ops import box_convert, generalized_box_iou

import picstore

WIDTH = 64


class Detector(nn.Module):
    """Convolutions of stride 16, and a transformer whose queries become a class and a box each."""

    def __init__(self, classes: int, queries: int) -> None:
        super().__init__()
        sizes = [3, 16, 32, 48, WIDTH]
        layers = [[nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.ReLU()] for a, b in pairwise(sizes)]
        self.backbone = nn.Sequential(*(layer for block in layers for layer in block))
        self.place = nn.Linear(2, WIDTH)
        self.queries = nn.Parameter(torch.randn(queries, WIDTH))
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 4, 128, 0.0, batch_first=True), 2)
        self.classify, self.locate = nn.Linear(WIDTH, classes + 1), nn.Linear(WIDTH, 4)

    def forward(self, images: torch.Tensor, padding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (N, Q, classes + 1) and boxes (N, Q, 4), center and size as fractions of the padded images."""
        features = self.backbone(images)
        rows, columns = (torch.linspace(0, 1, size, device=images.device) for size in features.shape[2:])
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1)
        memory = (features.permute(0, 2, 3, 1) + self.place(places)).flatten(1, 2)
        hidden = functional.interpolate(padding[:, None].float(), features.shape[2:])[:, 0].flatten(1) > 0.5
        found = self.decoder(self.queries.expand(len(images), -1, -1), memory, memory_key_padding_mask=hidden)
        return self.classify(found), self.locate(found).sigmoid()


# begin pad
def pad(images: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of several sizes as one tensor, and bool (N, H, W), which pixels are padding."""
    height, width = (max(image.shape[k] for image in images) for k in (1, 2))
    padded = images[0].new_zeros(len(images), 3, height, width)
    padding = torch.ones(len(images), height, width, dtype=torch.bool, device=padded.device)
    for slot, image in enumerate(images):
        padded[slot, :, : image.shape[1], : image.shape[2]] = image
        padding[slot, : image.shape[1], : image.shape[2]] = False
    return padded, padding


# end pad


def loss_of(logits: torch.Tensor, boxes: torch.Tensor, target: dict[str, Any], size: torch.Tensor) -> torch.Tensor:
    """The loss of one image: each object is matched to the query that costs least."""
    objects = box_convert(target["boxes"].as_subclass(torch.Tensor).to(boxes), "xyxy", "cxcywh") / size
    labels = target["labels"].to(boxes.device)

    def corners(each: torch.Tensor) -> torch.Tensor:
        return box_convert(each, "cxcywh", "xyxy")

    with torch.no_grad():
        cost = 5 * torch.cdist(boxes, objects, p=1) - 2 * generalized_box_iou(corners(boxes), corners(objects))
        cost = cost - logits.softmax(-1)[:, labels]
    queries, matched = (torch.as_tensor(each, device=boxes.device) for each in linear_sum_assignment(cost.cpu()))
    classes = torch.full((len(logits),), logits.shape[-1] - 1, device=boxes.device)  # the last one is "nothing"
    classes[queries] = labels[matched]
    weights = torch.ones(logits.shape[-1], device=boxes.device)
    weights[-1] = 0.1
    loss = functional.cross_entropy(logits, classes, weights)
    if len(matched):
        overlap = generalized_box_iou(corners(boxes[queries]), corners(objects[matched])).diagonal()
        loss = loss + 5 * functional.l1_loss(boxes[queries], objects[matched]) + 2 * (1 - overlap).mean()
    return loss


def main() -> None:
    """Train for a number of steps."""
    options = parse()
    torch.manual_seed(options.seed)
    # begin loader
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=picstore.recipes.detr(sizes=options.sizes, max_size=options.max_size),
        targets=["boxes"],
        seed=options.seed,
        device=options.device,
    )
    # end loader
    model = Detector(len(loader.dataset.classes), options.queries).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr, weight_decay=1e-4)
    step = 0
    while step < options.steps:
        for batch in loader:
            images, padding = pad(batch.images)
            size = torch.tensor([images.shape[3], images.shape[2]] * 2, device=images.device)
            outputs = zip(*model(images, padding), batch.targets, strict=True)
            loss = torch.stack([loss_of(*each, size) for each in outputs]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.5f}", flush=True)
            if step == options.steps:
                break


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(range(480, 801, 32)), help="shorter sides")
    parser.add_argument("--max-size", type=int, default=1333)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
