"""docs/reader.py, the reader that needs no picstore, reads what picstore writes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import simplejpeg

import picstore

READER = Path(__file__).parents[1] / "docs" / "reader.py"
GOLDEN = Path(__file__).parent / "fixtures" / "golden"


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """The module of docs/reader.py."""
    spec = importlib.util.spec_from_file_location("reader", READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["dataset", "edited"])
def test_the_independent_reader_reads_the_golden_sets(reader: ModuleType, name: str) -> None:
    found = [(id_, label, image) for image, label, id_ in reader.records(GOLDEN / name)]
    dataset = picstore.Dataset(GOLDEN / name)
    assert [(id_, label) for id_, label, _ in found] == [(record.id, record.label) for record in dataset]
    for (_, _, image), record in zip(found, dataset, strict=True):
        assert np.array_equal(image, simplejpeg.decode_jpeg(record.jpeg, "RGB"))


def test_the_independent_reader_needs_no_picstore_and_fits_a_page() -> None:
    program = f"import sys; sys.modules['picstore'] = None; sys.argv = ['reader.py', {str(GOLDEN / 'dataset')!r}]"
    program += f"; import runpy; runpy.run_path({str(READER)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "24 records\n"
    assert len(READER.read_text().splitlines()) <= 130


@pytest.mark.parametrize("offset", [100, 4096 + 10, 4096 + 70, 4096 + 1500])
def test_the_independent_reader_finds_damage(reader: ModuleType, tmp_path: Path, offset: int) -> None:
    path = Path(shutil.copytree(GOLDEN / "dataset", tmp_path / "damaged"))
    file = path / ("picstore.json" if offset == 100 else "0000/000000.pic")
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError):
        list(reader.records(path))
