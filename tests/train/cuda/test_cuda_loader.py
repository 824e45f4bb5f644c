"""Loaders that decode on a GPU: the same batches as on the CPU where decoders agree, and what fails there.

Without a GPU a decoder of this file takes the place of nvJPEG, and Triton's interpreter that of the kernels.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from grids import slow_except
from hostile import claiming, good_record, tiny_jpeg, write_dataset
from own_threads import our_threads
from samples import picture

import picstore
from picstore.errors import Corrupt, ImageError, MissingDependency, PicstoreError, UsageError
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage import dataset_reader, partial_reader
from picstore.storage.format import container_writer, segment_table
from picstore.storage.format.record import Record
from picstore.storage.format.segment_table import entry_points
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.cpu import decode_crop, fill_for_gpu
from picstore.train.cuda.nvjpeg import SOUND, Decode, choose_decoder, decode_all, load_decoder, with_index
from picstore.train.pipeline import batch_threads, device_augment, runner
from picstore.train.pipeline.device_decoding import DecodeTiles
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import compose_color
from picstore.train.transforms.geometry import Geometry

pytestmark = pytest.mark.interpreted
Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop((8, 16), scale=(0.3, 1.0)), picstore.RandomHorizontalFlip()]
CPU = torch.device("cpu")


class FakeDecoder:
    """Decodes as libjpeg-turbo does; a list that holds a chosen stream fails as a whole, as nvJPEG's does."""

    def __init__(self, fails: Callable[[bytes], bool] = lambda stream: False) -> None:
        self.fails = fails
        self.calls: list[int] = []

    def __call__(self, streams: list[torch.Tensor]) -> list[torch.Tensor]:
        data = [stream.numpy().tobytes() for stream in streams]
        if data != [SOUND]:  # the loader's own check of a decoder
            self.calls.append(len(streams))
            if any(map(self.fails, data)):
                raise RuntimeError("nvjpegDecodeBatched failed: 6")
        return [torch.from_numpy(simplejpeg.decode_jpeg(one, "RGB").transpose(2, 0, 1).copy()) for one in data]


Use = Callable[[Decode], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes loaders with ``decoder="torchvision"`` take a decoder of ours, and those on the CPU decode at full size."""

    def use(decoder: Decode) -> None:
        choose = runner.choose_decoder

        def choose_ours(name: str, device: torch.device) -> str:
            return name if name in ("picstore", "torchvision") else choose(name, device)

        monkeypatch.setattr(runner, "choose_decoder", choose_ours)
        monkeypatch.setattr(runner, "load_decoder", lambda name, device: decoder)

    return use


@pytest.fixture
def use_plainly(use: Use, monkeypatch: pytest.MonkeyPatch) -> Use:
    """The same where it is not about pixels: each image becomes four values of its left upper corner."""

    def corner(pictures: list[torch.Tensor], *_: object) -> torch.Tensor:
        return torch.stack([picture[:, :2, :2] for picture in pictures])

    def use_plainly(decoder: Decode) -> None:
        use(decoder)
        monkeypatch.setattr(device_augment, "augment_images", corner)

    return use_plainly


def pair(path: Path, **options: Any) -> tuple[picstore.Loader, picstore.Loader]:
    """A loader that decodes with the fake decoder, and one of the same that decodes on the CPU."""
    given = {"batch_size": 8, "transform": CROP, "threads": 2, "isolate": False, **options}
    return picstore.Loader(path, decoder="torchvision", **given), picstore.Loader(path, **{**given, "isolate": False})


def assert_alike(one: picstore.Batch, other: picstore.Batch) -> None:
    assert torch.equal(one.ids, other.ids) and torch.equal(one.labels, other.labels)
    for a, b in zip(one.images, other.images, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("isolate", slow_except([True], [False, True]))
def test_batches_are_those_of_the_cpu(make_dataset: Make, use: Use, isolate: bool) -> None:
    decoder = FakeDecoder()
    use(decoder)
    one, other = pair(make_dataset(5, width=24, height=20), batch_size=3, isolate=isolate, drop_last=False)
    for _ in range(2):
        batches = list(zip(one, other, strict=True))
        assert len(batches) == 2
        for batch, expected in batches:
            assert_alike(batch, expected)
    assert set(decoder.calls) == {3, 2}  # one call a batch
    one.close()
    other.close()
    assert our_threads() == []


def test_less_than_whole_images_is_decoded(make_dataset: Make, use: Use) -> None:
    seen: list[int] = []

    def note(stream: bytes) -> bool:
        height, width, _, _ = simplejpeg.decode_jpeg_header(stream)
        seen.append(height * width)
        return False

    use(FakeDecoder(note))
    path = make_dataset(2, width=200, height=150)
    one, other = pair(path, batch_size=2, transform=[picstore.RandomResizedCrop((8, 30), scale=(0.02, 0.04))])
    assert_alike(next(iter(one)), next(iter(other)))
    assert np.mean(seen) < 0.5 * 200 * 150


@pytest.mark.usefixtures("nothing_ahead")
def test_color_types_layouts_and_targets_are_those_of_the_cpu(make_dataset: Make, use: Use) -> None:
    use(FakeDecoder())
    steps = [*CROP, picstore.ColorJitter(0.2, 0.2, 0.2), picstore.Normalize((0.5,) * 3, (0.25,) * 3)]
    options = {"dtype": torch.float16, "memory_format": torch.channels_last, "targets": ["extra"]}
    one, other = pair(make_dataset(2, width=24, height=20), batch_size=2, transform=steps, **options)
    batch, expected = next(iter(one)), next(iter(other))
    assert_alike(batch, expected)
    assert isinstance(batch.images, torch.Tensor) and batch.images.stride() == expected.images.stride()
    assert batch.targets == expected.targets


@pytest.mark.slow
def test_views_are_those_of_the_cpu(make_dataset: Make, use: Use) -> None:
    decoder = FakeDecoder()
    use(decoder)
    small = [picstore.RandomResizedCrop(6, scale=(0.1, 0.5)), picstore.RandomInvert()]
    views = picstore.Views(large=(2, CROP), small=(2, small), whole=(1, []))
    one, other = pair(make_dataset(2, width=24, height=20), batch_size=2, transform=views)
    batch, expected = next(iter(one)), next(iter(other))
    assert torch.equal(batch.ids, expected.ids) and set(decoder.calls) == {2}  # each stream is decoded once
    for name, images in batch.views.items():
        for mine, theirs in zip(images, expected.views[name], strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert torch.equal(a, b)
    one.close(), other.close()


STEPS: list[list[Any]] = [
    [],
    [picstore.RandomHorizontalFlip()],
    [picstore.Resize(9), picstore.RandomInvert()],
]
HALF = {"dtype": torch.float16, "memory_format": torch.channels_last}


@pytest.mark.parametrize(("steps", "options"), slow_except([(STEPS[1], {})], product(STEPS, [{}, HALF])))
def test_images_without_a_common_size_come_as_a_list(
    make_dataset: Make, use: Use, steps: list[Any], options: dict[str, Any]
) -> None:
    use(FakeDecoder())
    one, other = pair(make_dataset(3, width=20, height=14), transform=steps, batch_size=3, **options)
    batch, expected = next(iter(one)), next(iter(other))
    assert isinstance(batch.images, list)
    assert_alike(batch, expected)
    assert [image.stride() for image in batch.images] == [image.stride() for image in expected.images]
    assert len({image.data_ptr() for image in batch.images}) == 3


def test_an_image_in_place_of_a_lost_one_is_a_copy_in_a_list_too() -> None:
    picture = torch.zeros(3, 5, 4, dtype=torch.uint8)
    params = TransformParams(
        Geometry.identity([4, 4], [5, 5]), compose_color([], np.array([[4, 5]] * 2), BatchRandom(0, 0, [0, 1]))
    )
    output = OutputSpec()
    places = np.zeros((2, 2), np.int64), np.ones(2, np.int64)
    (((first, second),),) = device_augment.augment_views(
        [[picture, picture]], [places], [params], output, output.groups[0]
    )
    assert torch.equal(first, second) and first.data_ptr() != second.data_ptr()


def test_an_image_that_fails_is_decoded_on_the_cpu_counted_and_said_once(
    make_dataset: Make, use_plainly: Use, caplog: pytest.LogCaptureFixture
) -> None:
    longest = 0

    def is_longest(stream: bytes) -> bool:
        nonlocal longest
        longest = max(longest, len(stream))
        return len(stream) == longest

    decoder = FakeDecoder(is_longest)
    use_plainly(decoder)
    one, other = pair(make_dataset(5), batch_size=5)
    for epoch in (1, 2):
        batch = next(iter(one))
        assert batch.ids.tolist() == next(iter(other)).ids.tolist()
        assert one.stats.fallbacks >= epoch
    assert decoder.calls[0] == 5 and 2 in decoder.calls and 1 in decoder.calls  # the next epoch begins beside
    assert one.damaged == 0
    assert caplog.text.count("which the GPU's decoder refuses") == 1
    assert "nvjpegDecodeBatched failed: 6" in caplog.text


@pytest.mark.parametrize("strict", [False, True])
def test_an_image_that_nothing_decodes_is_replaced_counted_and_named(
    make_dataset: Make,
    use_plainly: Use,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    strict: bool,
) -> None:
    path = make_dataset(4)
    plain = next(iter(picstore.Loader(path, batch_size=4, transform=CROP, isolate=False)))
    lost = int(plain.ids[2])
    bad = picstore.Dataset(path)[lost].jpeg
    real = decode_crop.decode_rgb

    def refuse(jpeg: Any, **size: Any) -> Any:
        if bytes(jpeg) == bad:
            raise ImageError("does not decode: broken")
        return real(jpeg, **size)

    monkeypatch.setattr(decode_crop, "decode_rgb", refuse)
    use_plainly(FakeDecoder(lambda stream: stream == bad))
    whole = [picstore.Resize((12, 12))]  # of the whole image, so that the stream is the stored one
    one, other = pair(path, batch_size=4, transform=whole, on_damage="raise" if strict else "skip")
    if strict:
        with pytest.raises(Corrupt, match=f"record {lost} does not decode"):
            list(one)
        return
    batch, expected = next(iter(one)), next(iter(other))
    ids = expected.ids.tolist()
    assert batch.ids.tolist() == [*ids[:2], ids[3], ids[3]] and batch.labels[2] == expected.labels[3]
    assert torch.equal(batch.images[2], batch.images[3]) and not torch.equal(batch.images[1], batch.images[3])
    assert one.damaged == 1
    assert f"record {lost} does not decode: broken" in caplog.text and ".pic" in caplog.text


def test_damage_that_the_cpu_finds_is_replaced_before_anything_is_decoded(make_dataset: Make, use_plainly: Use) -> None:
    path = make_dataset(24)
    file = next(path.glob("*/*.pic"))
    data = bytearray(file.read_bytes())
    data[7000] ^= 255
    file.write_bytes(data)
    decoder = FakeDecoder()
    use_plainly(decoder)
    one, other = pair(path, transform=[picstore.Resize((4, 4))])
    for batch, expected in zip(one, other, strict=True):
        assert batch.ids.tolist() == expected.ids.tolist()
    assert one.damaged == other.damaged > 0


@pytest.mark.parametrize("marker", [0xC0, 0xC2])
def test_a_stream_of_another_size_than_indexed_never_reaches_the_decoder(
    tmp_path: Path, use_plainly: Use, marker: int
) -> None:
    """The decoder, nvJPEG, allocates by the stream's own header: 13 GB for this one."""
    good = [good_record(number) for number in range(3)]
    large = tiny_jpeg(65_500, 65_500, marker=marker, data=bytes(20_000))
    path = write_dataset(tmp_path / "dataset", [*good, replace(claiming(100, 64, 64), jpeg=large, crc=None)])
    seen: list[tuple[int, int]] = []

    def note(stream: bytes) -> bool:
        seen.append(simplejpeg.decode_jpeg_header(stream)[:2])
        return False

    use_plainly(FakeDecoder(note))
    one, other = pair(path, batch_size=4, transform=[picstore.Resize((4, 4))], shuffle=False)
    assert next(iter(one)).ids.tolist() == next(iter(other)).ids.tolist()
    assert one.damaged == other.damaged == 1
    assert seen and max(max(size) for size in seen) < 1000


def test_an_early_end_ends_the_threads(make_dataset: Make, use_plainly: Use) -> None:
    use_plainly(FakeDecoder())
    one, _ = pair(make_dataset(80), transform=[picstore.Resize((4, 4))])
    for _ in one:
        break
    one.close()
    assert our_threads() == []


def test_images_of_another_size_than_the_index_says_are_no_images() -> None:
    stream = torch.from_numpy(np.frombuffer(simplejpeg.encode_jpeg(np.zeros((20, 30, 3), np.uint8)), np.uint8).copy())
    made = decode_all([stream, stream], np.array([[30, 20], [20, 30]]), decode=FakeDecoder(), device=CPU)
    assert made.images[0] is not None and made.images[0].shape == (3, 20, 30)
    assert made.images[1] is None and "instead of 20 × 30" in made.problems[1]


def test_pixels_that_a_decoder_interleaves_become_planes() -> None:
    decoded = torch.arange(60, dtype=torch.uint8).view(4, 5, 3).permute(2, 0, 1)
    stream = torch.zeros(9, dtype=torch.uint8)
    (image,) = decode_all([stream], np.array([[5, 4]]), decode=lambda streams: [decoded], device=CPU).images
    assert image is not None and image.is_contiguous() and torch.equal(image, decoded)


def test_a_device_without_a_number_is_the_one_of_the_consumers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert with_index(torch.device("cuda")) == torch.device("cuda:3")
    assert with_index(torch.device("cuda:1")) == torch.device("cuda:1")
    assert with_index(CPU) == CPU


def test_a_decoder_that_does_not_load_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", None)  # as if it were not installed
    with pytest.raises(MissingDependency, match="needs torchcodec"):
        load_decoder("torchcodec", torch.device("cuda"))


def test_a_decoder_is_loaded_and_tried_once_for_all_iterations(
    make_dataset: Make, use_plainly: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plainly(FakeDecoder())
    calls: list[str] = []
    for name in ("load_decoder", "check_decoder"):
        real = getattr(runner, name)
        monkeypatch.setattr(runner, name, lambda *given, n=name, f=real: (calls.append(n), f(*given))[1])
    one, _ = pair(make_dataset(3), batch_size=3, transform=[picstore.Resize((4, 4))])
    for _ in range(2):
        next(iter(one))  # left early, so that the next one begins anew
    assert calls == ["load_decoder", "check_decoder"]
    one.close()


def test_a_decoder_that_fails_its_trial_ends_an_iteration_before_a_start(
    make_dataset: Make, use_plainly: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("nvjpegDecodeBatched failed: 6")

    use_plainly(broken)
    started: list[Any] = []
    monkeypatch.setattr(runner.PipelineRunner, "_in_threads", lambda _, span: started.append(span))
    one, _ = pair(make_dataset(3), batch_size=3, transform=[picstore.Resize((4, 4))])
    for _ in range(2):
        with pytest.raises(PicstoreError, match=r"tried with a sound image and fails: nvjpegDecodeBatched failed: 6"):
            next(iter(one))
    one.close()
    assert started == [] and our_threads() == []


def test_a_decoder_for_a_gpu_is_refused_without_one() -> None:
    gpu = torch.device("cuda")
    assert choose_decoder("auto", CPU) == choose_decoder("cpu", gpu) == "cpu"
    assert choose_decoder("auto", gpu) == choose_decoder("picstore", gpu) == "picstore"
    assert choose_decoder("torchvision", gpu) == "torchvision"
    for name in ("picstore", "torchvision"):
        with pytest.raises(UsageError, match="works on a GPU"):
            choose_decoder(name, CPU)
    with pytest.raises(UsageError, match="unknown; use one of"):
        choose_decoder("pillow", CPU)


BUCKETS = picstore.Buckets([(12, 8), (8, 12)], lambda size: [picstore.RandomResizedCrop(size)])
SEQUENCES = picstore.Sequences([2, 4], lambda length: [picstore.ResizeToSequence(4, length)], tokens=8)


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize(
    ("transform", "size"), slow_except([], [(BUCKETS, 2), (SEQUENCES, None)]), ids=["buckets", "sequences"]
)
def test_batches_of_several_sizes_are_those_of_the_cpu(tmp_path: Path, use: Use, transform: Any, size: Any) -> None:
    use(FakeDecoder())
    with picstore.Writer(tmp_path / "set") as writer:
        for number in range(12 if size is None else 6):
            writer.add(picture(number, width=24 if number % 3 else 16, height=16 if number % 3 else 24))
    one, other = pair(tmp_path / "set", transform=transform, batch_size=size)
    shapes = set()
    for batch, expected in zip(one, other, strict=True):
        assert_alike(batch, expected)
        shapes.add((len(batch.labels), *batch.images[0].shape))
    assert len(shapes) > 1
    one.close()
    other.close()


TINY = [
    np.stack([np.full((9, 14), 90 + 9 * k), np.full((9, 14), 120), np.linspace(40, 90, 126).reshape(9, 14)], 2)
    for k in range(2)
]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Two small pictures of few coefficients: the interpreter takes a millisecond for each."""
    with picstore.Writer(tmp_path / "tiny") as writer:
        for number, levels in enumerate(TINY):
            writer.add(levels.astype(np.uint8), label=number)
    return tmp_path / "tiny"


def ours_and_the_cpus(path: Path, **options: Any) -> tuple[picstore.Loader, picstore.Loader]:
    """A loader that decodes by picstore's kernels for GPUs, and one on the CPU."""
    given = {"batch_size": 2, "threads": 1, "isolate": False, **options}
    return picstore.Loader(path, decoder="picstore", **given), picstore.Loader(path, **given)


TURNED: list[Any] = [picstore.CenterCrop(7), picstore.RandomHorizontalFlip(), picstore.RandomInvert()]


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize(
    ("steps", "isolate"),
    slow_except([([], False)], [([], True), ([], False), (TURNED, False)]),
    ids=["whole, isolated", "whole", "turned"],
)
def test_picstores_decoder_makes_the_cpus_pixels_bit_for_bit(
    tiny: Path, use: Use, steps: list[Any], isolate: bool
) -> None:
    use(FakeDecoder())
    one, other = ours_and_the_cpus(tiny, transform=steps, isolate=isolate)
    batch, expected = next(iter(one)), next(iter(other))
    assert torch.equal(batch.ids, expected.ids) and torch.equal(batch.labels, expected.labels)
    assert all(torch.equal(a, b) for a, b in zip(batch.images, expected.images, strict=True))
    assert one.stats.fallbacks == 0
    one.close(), other.close()


def gradients(seed: int, sampling: str = "420") -> bytes:
    """A smooth JPEG of 40 × 24 pixels, with tiles."""
    y, x = np.mgrid[:24, :40]
    levels = np.stack([60 + x * 2.0 + seed, 200 - y * 3.0, 90 + x + y], 2).astype(np.uint8)
    return add_restart_markers(simplejpeg.encode_jpeg(levels, 50, colorsubsampling=sampling))


ROTATED: list[Any] = [picstore.RandomResizedCrop(9, scale=(0.5, 1.0)), picstore.RandomRotation(30)]
TWICE = picstore.Views(large=(1, [picstore.Resize((9, 8))]), small=(2, [picstore.RandomResizedCrop(6)]))


PART: list[Any] = [picstore.CenterCrop(20), picstore.Resize(5)]
REDUCED: list[Any] = [(PART, 1.0, 4), ([picstore.Resize((3, 5))], 1.0, 8), (ROTATED, 1.0, 2), (TWICE, 1.0, 2)]
REDUCED.append((PART, 9.0, 1))


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize(("steps", "gap", "factor"), slow_except(REDUCED[:1], REDUCED), ids=lambda each: str(each)[:20])
def test_images_that_are_decoded_smaller_are_the_cpus(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch, steps: Any, gap: float, factor: int
) -> None:
    use(FakeDecoder())
    factors: list[int] = []
    start = DecodeTiles.start

    def count(self: DecodeTiles, hosts: Any) -> Any:
        factors.extend(hosts[0].encoded.factors.tolist())
        return start(self, hosts)

    monkeypatch.setattr(DecodeTiles, "start", count)
    records = [
        Record(id=number, label=0, jpeg=data, info=parse_image_info(data))
        for number, data in enumerate((gradients(0), gradients(9, "422")))
    ]
    path = write_dataset(tmp_path / "set", records)
    one, other = ours_and_the_cpus(path, transform=steps, reducing_gap=gap, seed=3)
    batch, expected = next(iter(one)), next(iter(other))
    made, wanted = ([*each.images.values()] if steps is TWICE else [each.images] for each in (batch, expected))
    assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))
    assert max(factors) == factor and one.stats.fallbacks == 0
    one.close(), other.close()


@pytest.mark.parametrize("first", ["with tiles", "without tiles"])
def test_a_gpu_that_makes_other_pixels_than_the_cpu_is_an_error(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    use(FakeDecoder())
    plain = simplejpeg.encode_jpeg(TINY[0].astype(np.uint8)[:8, :8], 50)
    tiles = add_restart_markers(plain)
    good = Record(id=0, label=0, jpeg=tiles, info=parse_image_info(tiles))
    records = [good] if first == "with tiles" else [replace(claiming(100, 8, 8), jpeg=plain, crc=None), good]
    path = write_dataset(tmp_path / "set", records)
    make, states = fill_for_gpu.decode_slot, []

    def decode_otherwise(*arguments: Any, **options: Any) -> Any:
        pixels, origin = make(*arguments, **options)
        return pixels ^ 1, origin

    monkeypatch.setattr(fill_for_gpu, "decode_slot", decode_otherwise)
    for begin in (fill_for_gpu.PROBED, 0):
        monkeypatch.setattr(fill_for_gpu, "_probed", count(begin))
        one, other = ours_and_the_cpus(path, batch_size=len(records), transform=[], shuffle=False)
        with pytest.raises(PicstoreError, match="other pixels than the CPU") if not begin else contextlib.nullcontext():
            states.append(next(iter(one)))
        one.close(), other.close()
    assert len(states) == 1


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.slow
def test_fallbacks_of_images_that_are_decoded_smaller_are_the_cpus(tmp_path: Path, use: Use) -> None:
    """One without tiles, and one whose damage lies beside the crop."""
    use(FakeDecoder())
    sound = gradients(0)
    plain = simplejpeg.encode_jpeg(simplejpeg.decode_jpeg(sound), 75)
    end = sound.index(b"\xff\xd0")
    broken = sound[: end - 2] + b"\xfe\xfe" + sound[end:]
    records = [Record(id=k, label=0, jpeg=each, info=parse_image_info(sound)) for k, each in enumerate((sound, broken))]
    records.append(replace(claiming(100, 40, 24), jpeg=plain, crc=None))
    path = write_dataset(tmp_path / "set", records)
    options = {"transform": PART, "reducing_gap": 1.0, "batch_size": 3}
    one, other = ours_and_the_cpus(path, shuffle=False, **options)
    batch, expected = next(iter(one)), next(iter(other))
    assert batch.ids.tolist() == expected.ids.tolist() and torch.equal(batch.images, expected.images)
    assert one.damaged == other.damaged and one.stats.fallbacks >= 2
    one.close(), other.close()


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.slow
def test_images_that_the_gpus_decoder_refuses_are_the_cpus_and_counted(
    tmp_path: Path, use: Use, caplog: pytest.LogCaptureFixture
) -> None:
    use(FakeDecoder())
    plain = simplejpeg.encode_jpeg(TINY[0].astype(np.uint8), 75)  # without tiles
    tiles = add_restart_markers(plain)
    good = Record(id=0, label=0, jpeg=tiles, info=parse_image_info(tiles))
    records = [good, replace(claiming(100, 14, 9), jpeg=plain, crc=None)]
    one, other = ours_and_the_cpus(write_dataset(tmp_path / "set", records), transform=[], shuffle=False)
    batch, expected = next(iter(one)), next(iter(other))
    assert batch.ids.tolist() == expected.ids.tolist()
    assert all(torch.equal(a, b) for a, b in zip(batch.images, expected.images, strict=True))
    assert one.damaged == other.damaged and one.stats.fallbacks >= 1
    assert caplog.text.count("which the GPU's decoder refuses") == 1
    one.close(), other.close()


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.slow
@pytest.mark.parametrize(("whole", "damaged"), [(False, 0), (True, 1)], ids=["beside the crop", "in the image"])
def test_the_cpu_decides_whether_a_segment_that_the_gpu_flags_is_damage(
    tmp_path: Path, use: Use, whole: bool, damaged: int
) -> None:
    """The CPU reads a tile up to the edge of a crop; what comes after it is no damage there."""
    use(FakeDecoder())
    levels = np.add.outer(np.arange(24) * 3, np.arange(32) * 2).astype(np.uint8)[:, :, None]
    sound = add_restart_markers(simplejpeg.encode_jpeg(levels, 60, "GRAY"))
    end = sound.index(b"\xff\xd1")  # of the second row of tiles
    broken = sound[: end - 2] + b"\xfe\xfe" + sound[end:]
    info = parse_image_info(sound)
    records = [Record(id=number, label=0, jpeg=data, info=info) for number, data in enumerate((sound, broken))]
    path = write_dataset(tmp_path / "set", records)
    options = {"transform": [] if whole else [picstore.CenterCrop(8)], "shuffle": False}
    one, other = ours_and_the_cpus(path, **options)
    batch, expected = next(iter(one)), next(iter(other))
    assert batch.ids.tolist() == expected.ids.tolist() == [0, 0 if whole else 1]
    assert all(torch.equal(a, b) for a, b in zip(batch.images, expected.images, strict=True))
    assert one.stats.fallbacks == 1 and one.damaged == other.damaged == damaged
    one.close(), other.close()


def long_tiles(seed: int) -> Record:
    """A smooth picture with one tile a row, in 3 parts."""
    y, x = np.mgrid[:24, :136]
    levels = np.stack([100 + x * 0.4 * (1 + seed), 90 + y * 3.0, 140 - x * 0.3], 2).astype(np.uint8)
    data = add_restart_markers(simplejpeg.encode_jpeg(levels, 50, colorsubsampling="444"))
    return Record(id=seed, label=seed, jpeg=data, info=parse_image_info(data))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Takes the number of parts of each image that batches describe."""
    parts: list[int] = []
    start = DecodeTiles.start

    def count(self: DecodeTiles, hosts: Any) -> Any:
        parts.extend(hosts[0].encoded.segments.count.tolist())
        return start(self, hosts)

    monkeypatch.setattr(DecodeTiles, "start", count)
    return parts


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["whole", "in part", "set aside"])
def test_long_segments_are_decoded_in_parts_however_they_are_read(
    tmp_path: Path, use: Use, parts: list[int], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    use(FakeDecoder())
    monkeypatch.setattr(segment_table, "MIN_BYTES", 0)
    monkeypatch.setattr(dataset_reader, "MIN_MEAN", 0 if how == "in part" else 1 << 40)
    monkeypatch.setattr(partial_reader, "_NEAR", 0)
    monkeypatch.setattr(partial_reader, "_MAX_SHARE", 2.0)
    gather = batch_threads.gather_records

    def gather_aside(requests: Any, containers: dict[Any, Any], **options: Any) -> BatchRecords:
        """Take records out of their containers, as they wait for batches of buckets."""
        aside = {key: each.extract(np.arange(len(each)), attachments=False) for key, each in containers.items()}
        return gather(requests, aside if how == "set aside" else containers, **options)

    monkeypatch.setattr(batch_threads, "gather_records", gather_aside)
    path = write_dataset(tmp_path / "set", [long_tiles(seed) for seed in range(2)])
    one, other = ours_and_the_cpus(path, transform=[picstore.RandomCrop((5, 30))], seed=2)
    for batch, expected in zip(one, other, strict=True):
        assert torch.equal(batch.ids, expected.ids) and torch.equal(batch.images, expected.images)
    assert parts and set(parts) <= {3, 6, 9} and one.stats.fallbacks == 0
    one.close(), other.close()


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.slow
def test_entry_points_that_are_wrong_cost_a_fallback_and_no_pixels(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeDecoder())

    def wrong(jpeg: bytes, info: Any) -> np.ndarray:
        entries = entry_points(jpeg, info).copy()
        entries[0 if jpeg == records[0].jpeg else 3] ^= 1 << 14 if jpeg == records[1].jpeg else 1
        return entries

    records = [long_tiles(seed) for seed in range(3)]  # a wrong interval, one beyond its segment, one that is wrong
    monkeypatch.setattr(container_writer, "entry_points", wrong)
    path = write_dataset(tmp_path / "set", records)
    one, other = ours_and_the_cpus(path, batch_size=3, transform=[], shuffle=False)
    batch, expected = next(iter(one)), next(iter(other))
    assert all(torch.equal(a, b) for a, b in zip(batch.images, expected.images, strict=True))
    assert one.stats.fallbacks == 3 and one.damaged == 0
    one.close(), other.close()
