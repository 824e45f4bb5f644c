"""Tokens of captions: a module of its own, which the loader's process imports."""

from __future__ import annotations

from typing import Any

import numpy as np

# begin tokenize
LENGTH, VOCABULARY = 32, 257  # tokens of a caption; its bytes, after 0 for padding


def tokenize(batch: dict[str, Any]) -> dict[str, Any]:
    """Cut captions into tokens, here their bytes; int64 (N, LENGTH). A record without a caption has padding only."""
    tokens = np.zeros((len(batch["ids"]), LENGTH), np.int64)
    for row, caption in zip(tokens, batch["columns"]["caption"], strict=True):
        values = np.frombuffer((caption or "").encode()[:LENGTH], np.uint8)
        row[: len(values)] = values.astype(np.int64) + 1
    return {"tokens": tokens}


# end tokenize
