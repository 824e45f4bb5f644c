"""Predictions for an H200, from before any GPU ran the kernels; what a first run measured on an H100; what is asked.

Predictions are of 23 November 2026, of augmentation of the 24th, computed from machine code for sm_90 and from counts
in photographs (docs/archive/benchmarks-2026-11.md). Images/s, at a tenth and at half of what instructions alone take;
one batch at a time is as fast as its longest segment, without augmentation. The first run was on an H100, on 26
November 2026; all figures of later ones are in ``benchmarks/gpu/runs``.
"""

from __future__ import annotations

LOSSLESS, QUALITY_90 = "as they are", "quality 90, 4:2:0"  # photographs of data sets
QUALITY_90_OPTIONS = ("--reencode", "--quality", "90")  # of ``picstore convert``

PREDICTED: dict[str, dict[str, tuple[int, int]]] = {
    QUALITY_90: {
        "make_tables": (5_851_000, 29_255_000),
        "decode_segments": (525_000, 2_600_000),
        "inverse_dct": (610_000, 3_100_000),
        "to_rgb": (420_000, 2_100_000),
        "all of decoding": (164_000, 820_000),
        "augmentation: run_phase": (100_000, 500_000),
        "copy of bytes to the GPU": (1_130_000, 1_130_000),
        "decoding and augmentation, one batch at a time": (290_000, 290_000),
    },
    LOSSLESS: {
        "decode_segments": (310_000, 1_550_000),
        "inverse_dct": (350_000, 1_750_000),
        "to_rgb": (585_000, 2_900_000),
        "all of decoding": (125_000, 630_000),
        "augmentation: run_phase": (100_000, 500_000),
        "copy of bytes to the GPU": (650_000, 650_000),
        "decoding and augmentation, one batch at a time": (280_000, 280_000),
    },
}
MEASURED: dict[str, dict[str, int]] = {  # batches of 256
    QUALITY_90: {
        "copy of bytes to the GPU": 1_185_000,
        "make_tables": 9_921_000,
        "decode_segments": 679_000,
        "sum_differences": 4_210_000,
        "inverse_dct": 1_500_000,
        "to_rgb": 803_000,
        "augmentation: make_weights": 10_251_000,
        "augmentation: run_phase": 673_000,
        "all of decoding": 269_000,
        "decoding and augmentation, one batch at a time": 113_000,
        "decoding and augmentation, 2 threads": 113_000,
    },
    LOSSLESS: {
        "copy of bytes to the GPU": 672_000,
        "make_tables": 9_435_000,
        "decode_segments": 400_000,
        "sum_differences": 2_846_000,
        "inverse_dct": 1_528_000,
        "to_rgb": 1_686_000,
        "augmentation: make_weights": 11_793_000,
        "augmentation: run_phase": 810_000,
        "all of decoding": 238_000,
        "decoding and augmentation, one batch at a time": 102_000,
        "decoding and augmentation, 2 threads": 176_000,
    },
}
ASKED_STANDARD = 100_000  # images/s of the standard job
ASKED_TRAINING = 0.97  # of the ceiling
ASKED_OF_PEERS = (5, 2)  # times as fast as one image at a time, and as lists
LINK = 50  # GB/s
ENGINES = (40_000, 69_000)  # images/s of nvJPEG's engines


def expected(name: str, photographs: str) -> str:
    """What was predicted for a figure, as text; empty where nothing was."""
    found = PREDICTED[photographs].get(name)
    if found is None:
        return ""
    least, most = found
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def measured(name: str, photographs: str) -> str:
    """What the first run measured, as text; empty where it measured nothing."""
    found = MEASURED[photographs].get(name)
    return "" if found is None else f"{found:,}"
