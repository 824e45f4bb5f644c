"""Batches for JAX, by DLPack and so without a copy where both can use the memory.

python examples/train_jax.py train-shuffled
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp

import picstore


@jax.jit
def step(weights: jax.Array, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of logistic regression on images shrunk to 8 × 8."""

    def loss_of(weights: jax.Array) -> jax.Array:
        pixels = images.astype(jnp.float32) / 255 - 0.5
        small = jax.image.resize(pixels, (*pixels.shape[:2], 8, 8), "linear").reshape(len(pixels), -1)
        scores = jax.nn.log_softmax(small @ weights)
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * gradient, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[picstore.RandomResizedCrop(64), picstore.RandomHorizontalFlip()],
    )
    weights = jnp.zeros((3 * 8 * 8, len(loader.dataset.classes)))
    for epoch in range(options.epochs):
        for images, labels in loader:
            weights, loss = step(weights, jnp.from_dlpack(images), jnp.from_dlpack(labels.int()))
        print(f"epoch {epoch} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
