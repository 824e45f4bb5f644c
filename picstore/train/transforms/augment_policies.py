"""Sub-policies of AutoAugment: pairs of operations with their chances and, from 0 to 10, their magnitudes."""

from __future__ import annotations

from typing import TypeAlias

Step: TypeAlias = tuple[str, float, int]  # name, chance, magnitude


def _parse(text: str) -> list[list[Step]]:
    """Parse sub-policies that commas separate; an operation without a magnitude has 0."""
    policy = []
    for pair in text.split(","):
        words = [step.split() for step in pair.split("+")]
        policy.append(
            [(name, float(chance), int(magnitude[0]) if magnitude else 0) for name, chance, *magnitude in words]
        )
    return policy


# The policies that the authors found on ImageNet, CIFAR-10 and SVHN.
IMAGENET = _parse("""
    Posterize 0.4 8 + Rotate 0.6 9, Solarize 0.6 5 + AutoContrast 0.6, Equalize 0.8 + Equalize 0.6,
    Posterize 0.6 7 + Posterize 0.6 6, Equalize 0.4 + Solarize 0.2 4, Equalize 0.4 + Rotate 0.8 8,
    Solarize 0.6 3 + Equalize 0.6, Posterize 0.8 5 + Equalize 1, Rotate 0.2 3 + Solarize 0.6 8,
    Equalize 0.6 + Posterize 0.4 6, Rotate 0.8 8 + Color 0.4 0, Rotate 0.4 9 + Equalize 0.6,
    Equalize 0 + Equalize 0.8, Invert 0.6 + Equalize 1, Color 0.6 4 + Contrast 1 8, Rotate 0.8 8 + Color 1 2,
    Color 0.8 8 + Solarize 0.8 7, Sharpness 0.4 7 + Invert 0.6, ShearX 0.6 5 + Equalize 1,
    Color 0.4 0 + Equalize 0.6, Equalize 0.4 + Solarize 0.2 4, Solarize 0.6 5 + AutoContrast 0.6,
    Invert 0.6 + Equalize 1, Color 0.6 4 + Contrast 1 8, Equalize 0.8 + Equalize 0.6
""")
CIFAR10 = _parse("""
    Invert 0.1 + Contrast 0.2 6, Rotate 0.7 2 + TranslateX 0.3 9, Sharpness 0.8 1 + Sharpness 0.9 3,
    ShearY 0.5 8 + TranslateY 0.7 9, AutoContrast 0.5 + Equalize 0.9, ShearY 0.2 7 + Posterize 0.3 7,
    Color 0.4 3 + Brightness 0.6 7, Sharpness 0.3 9 + Brightness 0.7 9, Equalize 0.6 + Equalize 0.5,
    Contrast 0.6 7 + Sharpness 0.6 5, Color 0.7 7 + TranslateX 0.5 8, Equalize 0.3 + AutoContrast 0.4,
    TranslateY 0.4 3 + Sharpness 0.2 6, Brightness 0.9 6 + Color 0.2 8, Solarize 0.5 2 + Invert 0,
    Equalize 0.2 + AutoContrast 0.6, Equalize 0.2 + Equalize 0.6, Color 0.9 9 + Equalize 0.6,
    AutoContrast 0.8 + Solarize 0.2 8, Brightness 0.1 3 + Color 0.7 0, Solarize 0.4 5 + AutoContrast 0.9,
    TranslateY 0.9 9 + TranslateY 0.7 9, AutoContrast 0.9 + Solarize 0.8 3, Equalize 0.8 + Invert 0.1,
    TranslateY 0.7 9 + AutoContrast 0.9
""")
SVHN = _parse("""
    ShearX 0.9 4 + Invert 0.2, ShearY 0.9 8 + Invert 0.7, Equalize 0.6 + Solarize 0.6 6, Invert 0.9 + Equalize 0.6,
    Equalize 0.6 + Rotate 0.9 3, ShearX 0.9 4 + AutoContrast 0.8, ShearY 0.9 8 + Invert 0.4,
    ShearY 0.9 5 + Solarize 0.2 6, Invert 0.9 + AutoContrast 0.8, Equalize 0.6 + Rotate 0.9 3,
    ShearX 0.9 4 + Solarize 0.3 3, ShearY 0.8 8 + Invert 0.7, Equalize 0.9 + TranslateY 0.6 6,
    Invert 0.9 + Equalize 0.6, Contrast 0.3 3 + Rotate 0.8 4, Invert 0.8 + TranslateY 0 2,
    ShearY 0.7 6 + Solarize 0.4 8, Invert 0.6 + Rotate 0.8 4, ShearY 0.3 7 + TranslateX 0.9 3,
    ShearX 0.1 6 + Invert 0.6, Solarize 0.7 2 + TranslateY 0.6 7, ShearY 0.8 4 + Invert 0.8,
    ShearX 0.7 9 + TranslateY 0.8 3, ShearY 0.8 5 + AutoContrast 0.7, ShearX 0.7 2 + Invert 0.1
""")

# TensorFlow's for EfficientNet, timm's "v0".
EFFICIENTNET = _parse("""
    Equalize 0.8 + ShearY 0.8 4, Color 0.4 9 + Equalize 0.6, Color 0.4 1 + Rotate 0.6 8,
    Solarize 0.8 3 + Equalize 0.4, Solarize 0.4 2 + Solarize 0.6 2, Color 0.2 0 + Equalize 0.8,
    Equalize 0.4 + SolarizeAdd 0.8 3, ShearX 0.2 9 + Rotate 0.6 8, Color 0.6 1 + Equalize 1,
    Invert 0.4 + Rotate 0.6 0, Equalize 1 + ShearY 0.6 3, Color 0.4 7 + Equalize 0.6,
    Posterize 0.4 6 + AutoContrast 0.4, Solarize 0.6 8 + Color 0.6 9, Solarize 0.2 4 + Rotate 0.8 9,
    Rotate 1 7 + TranslateYRel 0.8 9, ShearX 0 0 + Solarize 0.8 4, ShearY 0.8 0 + Color 0.6 4,
    Color 1 0 + Rotate 0.6 2, Equalize 0.8 + Equalize 0, Equalize 1 + AutoContrast 0.6,
    ShearY 0.4 7 + SolarizeAdd 0.6 7, Posterize 0.8 2 + Solarize 0.6 10, Solarize 0.6 8 + Equalize 0.6,
    Color 0.8 6 + Rotate 0.4 5
""")

# 3-Augment of Touvron et al., "DeiT III" (ECCV 2022).
THREE_AUGMENT = _parse("Solarize 1 5, Desaturate 1 10, GaussianBlurRand 1 10")
