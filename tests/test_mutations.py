"""Mutations of the code: what is changed and what is not, which tests look at it, and what is named as equivalent."""

from __future__ import annotations

from pathlib import Path

from benchmarks.child import ROOT
from benchmarks.torture.mutations import equivalents, find_mutations, mirrored_tests

SOURCE = '''
"""Adds 1 and 2."""

@dataclass(frozen=True, slots=True)
class A:
    n: tuple[int, 3] = field(default=4, repr=False)

def f(a: int = 5, *, b: Literal[6]) -> Array[7]:
    if TYPE_CHECKING:
        c = 8
    if not a + b <= 9 and b:
        raise ValueError(f"{a + 10} is over 11")
    prefetch_more(a, 12 + b)
    return zip(a // 2, strict=True)

def prefetch_more(a, b):
    return a + 13
'''


def changed() -> list[tuple[int, str]]:
    lines = SOURCE.splitlines()
    return [
        (each.line, each.apply(SOURCE).splitlines()[each.line - 1].strip())
        for each in find_mutations(Path("a.py"), SOURCE)
        if each.apply(SOURCE).splitlines()[each.line - 1] != lines[each.line - 1]
    ]


def test_operators_comparisons_and_numbers_change_one_at_a_time() -> None:
    found = {text for _, text in changed()}
    assert found == {
        "n: tuple[int, 3] = field(default=5, repr=False)",
        "def f(a: int = 6, *, b: Literal[6]) -> Array[7]:",
        "if not a - b <= 9 and b:",
        "if not a + b < 9 and b:",
        "if not a + b <= 10 and b:",
        "if not a + b <= 9 or b:",
        "if  a + b <= 9 and b:",
        "return zip(a * 2, strict=True)",
        "return zip(a // 3, strict=True)",
    }


def test_the_tests_of_a_module_are_the_mirrored_file_and_those_beside_it() -> None:
    own, importing, others = mirrored_tests(Path("picstore/jpeg/decoder/decode_baseline.py"))
    assert own == ["tests/jpeg/decoder/test_decode_baseline.py"]
    assert importing == [f"tests/jpeg/decoder/test_{name}.py" for name in ("box", "odd_streams", "parse")]
    assert others == ["tests/jpeg/decoder/test_describe.py"]
    groups = mirrored_tests(Path("picstore/train/batching/views_reach.py"))
    importing = ["tests/train/test_crops_of_large_images.py", "tests/train/test_parameters.py"]
    assert groups[:2] == [[], importing]
    assert mirrored_tests(Path("picstore/train/transforms/views.py"))[0] == ["tests/train/test_views.py"]


def test_what_is_named_as_equivalent_is_a_mutation_of_the_present_code() -> None:
    named = equivalents()
    assert named and all(named.values())
    for path in {key.partition(":")[0] for key in named}:
        source = (ROOT / path).read_text()
        possible = {each.key(source) for each in find_mutations(Path(path), source)}
        missing = {key for key in named if key.startswith(f"{path}:")} - possible
        assert not missing, f"remove or renew in equivalent.txt: {missing}"
