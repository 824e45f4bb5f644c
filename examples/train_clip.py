"""Train image and text towers on images with captions, as CLIP (Radford et al., ICML 2021) and OpenCLIP do.

    python examples/train_clip.py captioned --device cuda

The data set has a column of texts, ``dataset.with_columns({"caption": [...]}).save()``. ``captions.tokenize`` runs
where batches are made: the training loop gets tensors of tokens.
"""

from __future__ import annotations

import argparse

import torch
from captions import VOCABULARY, tokenize
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import picstore

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's


class TwoTowers(nn.Module):
    """Embeds images and texts in one space; a small model in place of OpenCLIP's."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, width, 8, stride=8),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, width),
        )
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.text = nn.GRU(width, width, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(14.3).log())

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Similarities of each image with each text, (N, N)."""
        texts = self.text(self.words(tokens))[1][0]
        return self.scale.exp() * normalize(self.image(images)) @ normalize(texts).T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    # begin loader
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[picstore.RandomResizedCrop(options.size, scale=(0.9, 1.0)), picstore.Normalize(MEAN, STD)],
        targets=["caption"],
        collate=tokenize,
        device=options.device,
    )
    # end loader
    model = TwoTowers().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr, weight_decay=0.2)
    for epoch in range(options.epochs):
        for number, batch in enumerate(loader):
            similarities = model(batch.images, batch.columns["tokens"])
            pairs = torch.arange(len(batch.labels), device=options.device)
            loss = (cross_entropy(similarities, pairs) + cross_entropy(similarities.T, pairs)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {epoch * len(loader) + number} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
