"""What the machine code of a kernel for NVIDIA's GPUs says of its loops, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Instruction(NamedTuple):
    """An instruction, the labels before it, and the cycles for which it holds its warp up."""

    text: str
    labels: tuple[str, ...]
    cycles: int


def parse(disassembly: str) -> list[Instruction]:
    """Parse what ``nvdisasm -c -hex`` prints.

    An instruction has 128 bits, of which 105 to 108 state the cycles that the warp waits before the next one. Waits for
    loads are not among them.
    """
    return list(_instructions(disassembly))


def _instructions(disassembly: str) -> Iterator[Instruction]:
    labels: tuple[str, ...] = ()
    text = ""
    for line in disassembly.splitlines():
        if found := re.match(r"(\.L_\w+):", line):
            labels = (*labels, found[1])
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);?\s*/\* 0x[0-9a-f]{16} \*/", line):
            text = found[1]
        elif text and (found := re.match(r"\s+/\* 0x([0-9a-f]{16}) \*/", line)):
            yield Instruction(text, labels, int(found[1], 16) >> 41 & 15)
            labels, text = (), ""


def longest_loop(code: list[Instruction]) -> tuple[int, int]:
    """Number of instructions, and cycles besides waits for loads, of the longest loop that contains no other; 0, 0."""
    at = {label: k for k, each in enumerate(code) for label in each.labels}
    loops = []
    for end, each in enumerate(code):
        found = re.search(r"BRA.*`\((\.L_\w+)\)", each.text)
        if found and (begin := at.get(found[1], end + 1)) <= end:
            loops.append((begin, end))
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    begin, end = max(inner, key=lambda loop: loop[1] - loop[0], default=(0, -1))
    return end - begin + 1, sum(each.cycles for each in code[begin : end + 1])
