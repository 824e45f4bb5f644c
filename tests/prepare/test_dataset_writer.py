"""picstore.Writer: a data set made in Python."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from samples import jpeg, picture

import picstore
from picstore.errors import Unfinished, UsageError
from picstore.prepare.convert.row_division import DatasetShape


def test_bytes_pil_images_and_arrays_become_records_with_label_and_extra(tmp_path: Path) -> None:
    png = io.BytesIO()
    Image.fromarray(picture(2)).save(png, "PNG")
    grey = picture(4)[..., 0]
    with picstore.Writer(tmp_path / "out", classes=["cat", "dog"]) as writer:
        images = [jpeg(1), png.getvalue(), Image.fromarray(picture(3)), picture(3), grey]
        for number, image in enumerate(images):
            assert writer.add(image, label=number % 2, extra={"caption": f"número {number}"}) == number
        writer.add(picture(5))
    dataset = picstore.Dataset(tmp_path / "out")
    assert dataset.classes == ["cat", "dog"]
    records = {record.id: record for record in dataset}
    assert [records[k].label for k in range(6)] == [0, 1, 0, 1, 0, -1]
    assert records[1].extra == {"caption": "número 1"}
    assert records[5].extra is None
    assert records[4].info.sampling == "grey"
    for number, expected in ((1, picture(2)), (3, picture(3))):
        with Image.open(io.BytesIO(records[number].jpeg)) as image:
            assert np.abs(np.asarray(image, dtype=int) - expected).mean() < 4


def test_a_jpeg_is_kept_without_loss_unless_the_writer_is_told_to_encode(tmp_path: Path) -> None:
    source = jpeg(1, width=100, height=80)
    with Image.open(io.BytesIO(source)) as image:
        expected = np.asarray(image)
    for name, options, kept in (("a", {}, True), ("b", {"reencode": True, "quality": 50}, False)):
        with picstore.Writer(tmp_path / name, **options) as writer:
            writer.add(source)
        record = picstore.Dataset(tmp_path / name)[0]
        assert record.info.restart_interval > 0
        with Image.open(io.BytesIO(record.jpeg)) as image:
            assert np.array_equal(np.asarray(image), expected) == kept


def test_settings_that_do_not_exist_or_fit_are_refused_before_any_writing(tmp_path: Path) -> None:
    for options in ({"sharpness": 3}, {"resize": "big"}, {"encoder": "mozjpeg", "subsampling": "422"}):
        with pytest.raises(picstore.UsageError):
            picstore.Writer(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_same_images_give_the_same_uuid(tmp_path: Path) -> None:
    for name, count in (("a", 5), ("b", 5), ("c", 6)):
        with picstore.Writer(tmp_path / name) as writer:
            for number in range(count):
                writer.add(picture(number))
    uuids = [picstore.Dataset(tmp_path / name).uuid for name in "abc"]
    assert uuids[0] == uuids[1] != uuids[2]


def test_rows_end_when_their_files_are_full(tmp_path: Path) -> None:
    shape = DatasetShape(streams=2, file_size=8 << 10, container_size=8 << 10)
    with picstore.Writer(tmp_path / "out", shape=shape) as writer:
        for number in range(40):
            writer.add(picture(number, width=100, height=100))
    dataset = picstore.Dataset(tmp_path / "out")
    assert len(dataset) == 40
    assert max(entry.file for entry in dataset.manifest.files) > 2
    assert max(entry.bytes for entry in dataset.manifest.files) < 40 << 10


def test_an_image_that_cannot_be_read_is_refused_and_the_writer_goes_on(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "out", classes=["a"]) as writer:
        with pytest.raises(picstore.ImageError):
            writer.add(b"not an image")
        with pytest.raises(picstore.UsageError, match="label 3"):
            writer.add(picture(1), label=3)
        with pytest.raises(picstore.UsageError, match="not JSON"):
            writer.add(picture(1), extra=object())
        with pytest.raises(picstore.UsageError, match="not declared"):
            writer.add(picture(1), attachments={"mask": b""})
        assert writer.add(picture(1), label=0) == 0
    assert len(picstore.Dataset(tmp_path / "out")) == 1


def test_an_error_leaves_no_data_set_and_no_half_written_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the user's"), picstore.Writer(tmp_path / "out") as writer:
        writer.add(picture(1))
        raise RuntimeError("the user's")
    with pytest.raises(picstore.NotADataset, match="unfinished"):
        picstore.Dataset(tmp_path / "out")
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_writer_left_cannot_be_resumed_and_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), picstore.Writer(tmp_path / "out"):
        raise RuntimeError
    with pytest.raises(Unfinished, match=f"unfinished Writer, which cannot be continued; remove {tmp_path}"):
        picstore.Writer(tmp_path / "out")


def test_a_destination_in_use_is_refused(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "out") as writer:
        writer.add(picture(1))
    with pytest.raises(picstore.UsageError, match="already a dataset"):
        picstore.Writer(tmp_path / "out")


def test_attachments_that_are_no_bytes_are_refused(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "dataset", attachments=["mask"]) as writer:
        with pytest.raises(UsageError, match="attachment 'mask' is of type ndarray; give bytes"):
            writer.add(picture(0), attachments={"mask": np.zeros((40, 60), np.uint8)})  # type: ignore[dict-item]
        writer.add(picture(0), attachments={"mask": b"mask"})


def test_tensors_become_records(tmp_path: Path) -> None:
    import torch

    pixels = torch.tensor(picture(3)).permute(2, 0, 1)
    with picstore.Writer(tmp_path / "out") as writer:
        for image in (pixels, pixels[:1], pixels[0]):
            writer.add(image)
        with pytest.raises(UsageError, match=r"torch.float32; give uint8"):
            writer.add(pixels / 255)
        with pytest.raises(UsageError, match=r"shape \(\d+, \d+, 3\); give \(3, H, W\)"):
            writer.add(pixels.permute(1, 2, 0))
    records = {record.id: record for record in picstore.Dataset(tmp_path / "out")}
    assert np.abs(records[0].image.astype(int) - picture(3)).mean() < 4
    assert records[1].info.sampling == records[2].info.sampling == "grey"


def test_labels_may_be_names_of_classes(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "out", classes=["cat", "dog"]) as writer:
        writer.add(picture(1), label="dog")
        with pytest.raises(UsageError, match=r"label is 'cow', and its classes are \['cat', 'dog'\]; give"):
            writer.add(picture(1), label="cow")
    assert picstore.Dataset(tmp_path / "out")[0].label == 1


@pytest.mark.parametrize("image", ["a.jpg", Path("a.jpg"), None, 7, [1, 2]])
def test_what_is_not_an_image_is_refused_by_its_value(tmp_path: Path, image: object) -> None:
    with picstore.Writer(tmp_path / "dataset") as writer:
        with pytest.raises(UsageError, match=r"give the bytes of a file, such as path\.read_bytes\(\), a PIL image"):
            writer.add(image)
        writer.add(picture(1))
    assert len(picstore.Dataset(tmp_path / "dataset")) == 1
