"""Images that one kernel call makes: the same as stage by stage, and what it leaves is made or reported one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from samples import picture

import picstore
from picstore.prepare.convert.row_division import DatasetShape
from picstore.storage.format.container import Container
from picstore.storage.format.layout import SAMPLINGS
from picstore.train.batching.gather import BatchRecords, gather_records
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import BufferPool
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.order.epoch_order import Samples
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.transforms.transform_plan import plan_transforms

COUNT = 10
CROP = [picstore.RandomResizedCrop(64, scale=(0.1, 0.2)), picstore.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> picstore.Dataset:
    """Noisy pictures of many sizes, some grey."""
    path = tmp_path_factory.mktemp("upright") / "dataset"
    with picstore.Writer(path, shape=DatasetShape(streams=1)) as writer:
        for number in range(COUNT):
            image = picture(number, width=200 + 31 * number, height=310 - 17 * number).astype(int)
            image = (image + np.random.default_rng(number).integers(-20, 20, image.shape)).clip(0, 255).astype(np.uint8)
            writer.add(image[..., 0] if number % 3 == 0 else image)
    return picstore.Dataset(path)


def made(
    dataset: picstore.Dataset, container: Container, steps: object, gap: float | None = None, **output: object
) -> tuple[BatchRecords, ImageFiller, dict[int, picstore.Damage]]:
    """A batch of all records of a container."""
    plan, _ = plan_transforms(steps, reducing_gap=gap)
    sources = (TrainingSource(dataset, 0, plan=plan),)
    numbers = np.arange(len(container))
    request = SourceRequest(0, 0, Samples(np.zeros_like(numbers), numbers, numbers, numbers < 0), numbers)
    records = gather_records([request], {(0, 0, 0): container}, sources=sources)
    params = make_params([request], records.ids, records.image_sizes, sources=sources, extras=records.extras)
    filler = ImageFiller(records, params, OutputSpec.from_plans([plan], **output), BufferPool(1))
    return records, filler, filler.fill(range(len(records)))


def writable(container: Container) -> tuple[Container, memoryview]:
    """The container in memory that can be harmed."""
    container.buffer = memoryview(bytearray(container.buffer))
    return container, container.buffer


def assert_same(a: ImageFiller, b: ImageFiller) -> None:
    for group, others in zip(a.images, b.images, strict=True):
        for view, other_view in zip(group, others, strict=True):
            for one, other in zip(view, other_view, strict=True):
                assert one.strides == other.strides and np.array_equal(one, other)


@pytest.mark.parametrize(("channels_last", "gap"), [(False, None), (True, None), (False, 1.0), (False, 2.0)])
@pytest.mark.parametrize(
    "steps",
    [
        CROP,
        [picstore.Resize((50, 70), antialias=False), picstore.RandomVerticalFlip()],
        [picstore.RandomCrop(300, pad_if_needed=True, fill=(9, 99, 199))],
        [*CROP, picstore.ColorJitter(0.4, 0.4), picstore.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))],
        [*CROP, picstore.RandomGrayscale(0.5)],
        [picstore.Resize(40)],
        [picstore.Resize((21, 17), "lanczos"), picstore.RandomVerticalFlip(1)],
        [],
        picstore.Views(small=(2, [picstore.RandomResizedCrop(24)]), large=(1, [picstore.RandomResizedCrop(64)])),
    ],
)
def test_images_are_the_same_as_stage_by_stage(
    dataset: picstore.Dataset,
    request: pytest.FixtureRequest,
    steps: object,
    channels_last: bool,
    gap: float | None,
) -> None:
    _, together, wrong = made(dataset, dataset.containers.read(0), steps, gap, channels_last=channels_last)
    assert wrong == {} and together._fused.done.all()
    request.getfixturevalue("stage_by_stage")
    _, apart, wrong = made(dataset, dataset.containers.read(0), steps, gap, channels_last=channels_last)
    assert wrong == {}
    assert_same(together, apart)


def test_the_kernel_makes_what_is_upright_and_nothing_else(dataset: picstore.Dataset) -> None:
    for gap in (None, 1.0):
        for steps, smaller in ((CROP, False), ([picstore.Resize((20, 20))], gap is not None)):
            _, filler, _ = made(dataset, dataset.containers.read(0), steps, gap=gap)
            assert filler._fused.done.all() and (filler._factors > 1).any() == smaller
        _, filler, wrong = made(dataset, dataset.containers.read(0), [picstore.RandomRotation(30), picstore.Resize(64)])
        assert not filler._fused.done.any() and wrong == {} and filler.images[0][0][0].any()


def test_a_new_thread_makes_room_for_large_images(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "large", shape=DatasetShape(streams=1)) as writer:
        for number in range(2):
            noise = np.random.default_rng(number).integers(0, 256, (900, 1200 + 300 * number, 3), dtype=np.uint8)
            writer.add(noise)
    large = picstore.Dataset(tmp_path / "large")
    with ThreadPoolExecutor(1) as fresh:
        _, filler, wrong = fresh.submit(made, large, large.containers.read(0), [picstore.Resize((700, 700))]).result()
    assert wrong == {} and filler._fused.done.all()


def test_a_damaged_stream_is_reported_and_the_others_are_made(dataset: picstore.Dataset) -> None:
    sound, good, _ = made(dataset, dataset.containers.read(0), CROP)
    container, buffer = writable(dataset.containers.read(0))
    entry = container.index[4]
    begin = int(entry["offset"])
    buffer[begin : begin + int(entry["header_length"])] = bytes(int(entry["header_length"]))
    records, filler, wrong = made(dataset, container, CROP)
    assert list(wrong) == [4] and not filler._fused.done[4]
    assert f"record {records.ids[4]} does not decode" in str(wrong[4])
    assert wrong[4].offset == container.ref.offset + begin
    others = [slot for slot in range(len(sound)) if slot != 4]
    assert np.array_equal(filler.images[0][0, others], good.images[0][0, others])


def test_damage_in_rows_that_no_view_shows_is_reported_in_any_order(
    dataset: picstore.Dataset, request: pytest.FixtureRequest
) -> None:
    """The crop's last row of tiles, of which the filter needs the first rows alone; right of the crop none is seen."""
    steps = [picstore.CenterCrop((60, 60)), picstore.Resize((30, 30))]
    container, buffer = writable(dataset.containers.read(0))
    for k, entry in enumerate(container.index):
        begin = int(entry["offset"]) + int(entry["header_length"])
        lengths = container.info(k).segments.astype(int) + 2
        per_row = len(lengths) // -(
            -int(entry["height"]) // (8 if entry["sampling"] == SAMPLINGS.index("grey") else 16)
        )
        ends = begin + np.add.accumulate(lengths)[per_row - 1 :: per_row]
        side = 8 if entry["sampling"] == SAMPLINGS.index("grey") else 16
        row = (round((int(entry["height"]) - 60) / 2) + 60) // side  # of tiles, below the crop's last pixel
        buffer[ends[row - 1] : ends[row] - 2] = bytes([0x5A]) * (ends[row] - 2 - ends[row - 1])
    _, together, wrong = made(dataset, container, steps)
    request.getfixturevalue("stage_by_stage")
    _, _, expected = made(dataset, container, steps)
    assert set(wrong) <= set(expected) and len(wrong) >= len(expected) - 2
    assert not together._fused.done[list(wrong)].any()


def rename_tables(jpeg: memoryview) -> None:
    """Give the Huffman tables of a grey JPEG the number 3, which baseline does not have; libjpeg reads it."""
    at = 2
    while (marker := jpeg[at + 1]) != 0xDA:
        length = int.from_bytes(jpeg[at + 2 : at + 4], "big")
        table = at + 4
        while marker == 0xC4 and table < at + 2 + length:
            jpeg[table] |= 3
            table += 17 + sum(jpeg[table + 1 : table + 17])
        at += 2 + length
    jpeg[at + 6] = 0x33


def test_what_only_libjpeg_decodes_is_made_all_the_same(dataset: picstore.Dataset) -> None:
    _, good, _ = made(dataset, dataset.containers.read(0), CROP)
    container, buffer = writable(dataset.containers.read(0))
    entry = container.index[np.flatnonzero(container.index["sampling"] == SAMPLINGS.index("grey"))[0]]
    rename_tables(buffer[int(entry["offset"]) : int(entry["offset"]) + int(entry["length"])])
    records, filler, wrong = made(dataset, container, CROP)
    assert wrong == {} and records.ids[~filler._fused.done].tolist() == [entry["id"]]
    assert np.array_equal(filler.images[0], good.images[0])


def test_a_stream_of_another_size_than_its_index_entry_says_is_reported(dataset: picstore.Dataset) -> None:
    container, buffer = writable(dataset.containers.read(0))
    tall = int(np.flatnonzero(container.index["height"] % 16 > 1)[0])  # as many rows of MCUs without its last row
    entry = container.index[tall]
    begin, end = int(entry["offset"]), int(entry["offset"]) + int(entry["header_length"])
    at = begin + bytes(buffer[begin:end]).index(b"\xff\xc0")
    buffer[at + 5 : at + 7] = (int(entry["height"]) - 1).to_bytes(2, "big")
    _, filler, wrong = made(dataset, container, [picstore.Resize((300, 300))])
    assert list(wrong) == [tall] and not filler._fused.done[tall]
    assert "pixels instead of" in str(wrong[tall])


def test_nothing_of_a_batch_refers_to_its_containers_once_released(dataset: picstore.Dataset) -> None:
    records, _, _ = made(dataset, dataset.containers.read(0), CROP)
    assert bytes(records.jpeg(3)) == bytes(dataset.containers.read(0).jpeg(3))
    records.release()
    assert records.containers == [] and not records.sizes.any()
    assert len(records.jpeg(3)) == 0
