"""Constants of libjpeg's "islow" DCT, which encoder and decoder share.

Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (ICASSP 1989), in
integers.
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
