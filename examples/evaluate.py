"""Evaluate a classifier of torchvision: every image exactly once, top-1 and top-5.

    python examples/evaluate.py val --model resnet50 --weights resnet50.pth --device cuda

``drop_last=False`` keeps the last, smaller batch; ``shuffle=False`` reads in stored order. Decode on the device on
which the model was trained: decoders differ by some levels.
"""

from __future__ import annotations

import argparse

import torch
from train_resnet import MEAN, STD, make_model

import picstore


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--weights", required=True, help="a state dict, or a checkpoint of train_resnet.py")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--resize", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--interpolation", default="bilinear")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[
            picstore.Resize(options.resize, options.interpolation),
            picstore.CenterCrop(options.size),
            picstore.Normalize(MEAN, STD),
        ],
        shuffle=False,
        drop_last=False,
        device=options.device,
        memory_format=torch.channels_last,
    )
    classes = loader.dataset.classes
    state = torch.load(options.weights, map_location="cpu", weights_only=True)
    model = make_model(options.model, len(classes))
    model.load_state_dict(state.get("model", state))
    model.to(options.device, memory_format=torch.channels_last).eval()
    ranks = []  # place of the right class among the predictions of each image
    for images, labels in loader:
        scores = model(images)
        ranks.append((scores > scores.gather(1, labels[:, None])).sum(1).cpu())
    place = torch.cat(ranks)
    top1, top5 = (100 * (place < k).double().mean().item() for k in (1, 5))
    print(f"{len(place)} images, top-1 {top1:.2f} %, top-5 {top5:.2f} %")


if __name__ == "__main__":
    main()
