"""Constants of libjpeg's "islow" DCT, which encoder and decoder share.

Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (ICASSP 1989), in
integers. ``FOUR`` and ``TWO`` are of the inverse transforms of 4 and of 2 samples (libjpeg's jidctred.c).
"""

from __future__ import annotations

FRACTION, PASS_FRACTION = 13, 2  # fractional bits: of constants, and of the first pass


def _fixed(value: float) -> int:
    return round(value * (1 << FRACTION))


# sqrt(2) times cosines of multiples of pi/16 and their sums, each rounded separately.
A, B, C = _fixed(0.541196100), _fixed(0.765366865), -_fixed(1.847759065)
D = _fixed(1.175875602)
ONES = _fixed(0.298631336), _fixed(2.053119869), _fixed(3.072711026), _fixed(1.501321110)
TWOS = -_fixed(0.899976223), -_fixed(2.562915447), -_fixed(1.961570560), -_fixed(0.390180644)

# Factors of coefficients 7 and 5, then 3 and 1, in the odd sums of the inner and of the outer samples.
FOUR = (
    (-_fixed(0.211164243), _fixed(1.451774981), -_fixed(2.172734803), _fixed(1.061594337)),
    (-_fixed(0.509795579), -_fixed(0.601344887), _fixed(0.899976223), _fixed(2.562915447)),
)
FOUR_EVEN = _fixed(1.847759065), -_fixed(0.765366865)  # of coefficients 2 and 6
TWO = _fixed(3.624509785), -_fixed(1.272758580), _fixed(0.850430095), -_fixed(0.720959822)  # of 1, 3, 5 and 7
