"""The server's answers: records, pictures, crops, places, and errors."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from commands import picstore_command
from grids import slow_except
from hostile import index_endless_image
from pictures import require
from PIL import Image
from samples import jpeg, picture
from starlette.testclient import TestClient
from view_page import CLASSES, COUNT, serving, started

import picstore
from picstore.kernels import ahead
from picstore.viewer.images import mask_colors


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_the_dataset_is_described(client: TestClient, dataset: picstore.Dataset) -> None:
    told = client.get("/api/dataset").json()
    assert (told["images"], told["classes"], told["uuid"]) == (COUNT, list(CLASSES), dataset.uuid)
    assert told["numbers"] == ["width", "height", "bytes", "score"]
    assert told["attachments"] == ["mask"]


def test_a_page_has_what_is_known_of_each_record(client: TestClient, dataset: picstore.Dataset) -> None:
    page = client.get("/api/records", params={"start": 5, "count": 4}).json()
    assert page["total"] == COUNT
    for item, record in zip(page["items"], dataset[5:9], strict=True):
        assert item["id"] == str(record.id)
        assert (item["label"], item["width"], item["height"]) == (record.label, record.width, record.height)
        assert item["bytes"] == len(record.jpeg)
        assert record.extra_json.decode().startswith(item["extra"][:-1])
        assert item["columns"]["caption"] == record.columns["caption"]
        assert item["columns"]["score"] == record.columns["score"]
        assert not item["damage"]


def test_a_filtered_page_counts_and_lists_what_is_left(client: TestClient, dataset: picstore.Dataset) -> None:
    chosen = json.dumps({"labels": [1], "ranges": {"width": [200, None]}})
    page = client.get("/api/records", params={"filter": chosen, "count": 1000}).json()
    expected = [str(record.id) for record in dataset if record.label == 1 and record.width >= 200]
    assert [item["id"] for item in page["items"]] == expected
    assert page["total"] == len(expected)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/records?count=100000", 400),
        ("/api/records?start=-1", 400),
        ("/api/records?start=x", 400),
        ("/api/records?filter=[", 400),
        ("/api/image", 400),
        ("/api/image?position=36", 400),
        ("/thumbnail?position=0&size=100000", 400),
        ("/crop?position=0&left=0&top=0&width=0&height=5", 400),
        ("/crop?position=0&left=150&top=0&width=500&height=5", 400),
        ("/api/cut?position=0&left=0&top=0&width=9999&height=5", 400),
        ("/attachment?position=0&name=no", 400),
        ("/api/find?id=77", 400),
        ("/api/find?id=" + "9" * 5000, 400),
        ("/api/find?id=%D9%A3", 400),
        ("/api/find?id=1_0", 400),
        ("/api/image?position=%EF%BF%BD", 400),
        ("/attachment?position=0&name=%00", 400),
        ("/api/cut?position=0&left=9223372036854775807&top=0&width=9223372036854775807&height=1", 400),
        ("/api/replay/position?state=" + "[" * 5000, 400),
        ("/api/dataset/", 404),
        ("/static/no-such.js", 404),
        ("/api/no-such", 404),
    ],
)
def test_wrong_parameters_are_refused_with_a_reason(client: TestClient, path: str, status: int) -> None:
    require(importlib.util.find_spec("torch") or "replay" not in path, "torch")
    answer = client.get(path)
    assert answer.status_code == status
    assert len(answer.json()["error"]) > 10


def test_thumbnails_are_small_and_show_the_image(client: TestClient, dataset: picstore.Dataset) -> None:
    for size in (16, 64, 100, 400):
        answer = client.get("/thumbnail", params={"position": 30, "size": size})
        shown, image = pixels(answer.content), dataset[30].image
        assert answer.headers["content-type"] == "image/jpeg"
        assert size <= max(shown.shape) or shown.shape == image.shape
        assert max(shown.shape) <= max(2 * size + 8, 64) or shown.shape == image.shape
        reduced = Image.fromarray(image).resize((shown.shape[1], shown.shape[0]), Image.Resampling.BOX)
        assert np.abs(np.asarray(reduced, int) - shown).mean() < 6


def test_pictures_are_kept_by_the_browser_and_not_made_again(client: TestClient) -> None:
    first = client.get("/thumbnail?position=3&size=64")
    assert "max-age" in first.headers["cache-control"]
    again = client.get("/thumbnail?position=3&size=64", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_crop_shows_its_pixels_and_counts_the_bytes_of_its_tiles(
    client: TestClient, dataset: picstore.Dataset
) -> None:
    record = dataset[20]
    box = {"left": 70, "top": 30, "width": 50, "height": 40}
    shown = client.get("/crop", params={"position": 20, **box})
    assert (pixels(shown.content) == record.image[30:70, 70:120]).all()
    told = client.get("/api/cut", params={"position": 20, **box}).json()
    stream, _ = picstore.cut(record.jpeg, (70, 30, 50, 40))
    assert (told["bytes"], told["of"]) == (len(stream), len(record.jpeg))
    left, top, width, height = told["rect"]
    assert left <= 69 and top <= 29 and left + width >= 121 and top + height >= 71
    tiles = client.get("/api/image?position=20").json()["tiles"]
    assert left % tiles["width"] == top % tiles["height"] == 0
    assert told["tiles"] == -(-width // tiles["width"]) * -(-height // tiles["height"])
    assert told["of_tiles"] == tiles["columns"] * tiles["rows"] == len(tiles["bytes"])


def test_details_say_where_the_bytes_lie(client: TestClient, dataset: picstore.Dataset) -> None:
    for position in (0, 17, COUNT - 1):
        record = dataset[position]
        details = client.get("/api/image", params={"position": position}).json()
        place = details["place"]
        stored = Path(str(dataset.path), place["file"]).read_bytes()[place["offset"] :][: place["size"]]
        assert stored == bytes(record.jpeg)
        assert sum(details["tiles"]["bytes"]) + 2 * len(record.info.segments) + details["header_bytes"] == place["size"]
        assert [span["chosen"] for span in place["records"]].count(True) == 1
        (chosen,) = (span for span in place["containers"] if span["chosen"])
        assert chosen["offset"] <= place["offset"] < chosen["offset"] + chosen["size"]


def test_details_have_the_objects_of_an_image(client: TestClient, dataset: picstore.Dataset) -> None:
    details = client.get("/api/image?position=2").json()
    assert details["objects"]["boxes"] == dataset[2].extra["boxes"]
    assert details["objects"]["labels"] == [0, 2]
    assert details["objects"]["keypoints"][0] == [[30, 20, 2], [60, 40, 1]]
    assert details["objects"]["polygons"][0] == [[[20, 10], [80, 10], [50, 60]]]
    assert json.loads(details["extra"]) == dataset[2].extra


def test_a_mask_is_shown_with_a_color_for_each_value_and_0_transparent(client: TestClient) -> None:
    answer = client.get("/attachment?position=4&name=mask")
    shown = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert shown.shape[2] == 4
    assert shown[0, 0, 3] == 0
    assert len(np.unique(shown[0], axis=0)) == 3
    colors = mask_colors(np.arange(256).reshape(16, 16).astype(np.uint8)).reshape(-1, 4)
    assert len(np.unique(colors[1:], axis=0)) == 255


def test_a_damaged_record_is_named_and_the_others_are_shown(
    annotated: Path, make_client: Callable[[picstore.Dataset], TestClient]
) -> None:
    dataset = picstore.Dataset(annotated)
    client = make_client(dataset)
    place = client.get("/api/image?position=4").json()["place"]
    file = annotated / place["file"]
    raw = bytearray(file.read_bytes())
    raw[place["offset"] + 100] ^= 1
    file.write_bytes(raw)
    damaged = make_client(picstore.Dataset(annotated))
    for path in ("/thumbnail?position=4", "/api/image?position=4", "/picture?position=4"):
        answer = damaged.get(path)
        assert answer.status_code == 422
        assert place["file"] in answer.json()["error"]
    assert damaged.get("/thumbnail?position=5").status_code == 200


def test_a_container_with_damaged_tables_is_shown_as_damage_in_the_grid(
    annotated: Path, make_client: Callable[[picstore.Dataset], TestClient]
) -> None:
    dataset = picstore.Dataset(annotated)
    ref = dataset.containers.container_ref(0)
    file = annotated / ref.name
    raw = bytearray(file.read_bytes())
    raw[ref.offset : ref.offset + 2000] = bytes(2000)
    file.write_bytes(raw)
    items = make_client(picstore.Dataset(annotated)).get("/api/records?count=36").json()["items"]
    held = int(dataset.rows["records"][0])
    assert [bool(item["damage"]) for item in items] == [k < held for k in range(COUNT)]


def test_images_of_an_index_that_are_no_jpegs_are_shown(
    tmp_path: Path, make_client: Callable[[picstore.Dataset], TestClient]
) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    Image.open(io.BytesIO(jpeg(1, width=500, height=300))).save(tmp_path / "in" / "a" / "x.png")
    (tmp_path / "in" / "a" / "y.jpg").write_bytes(jpeg(2))
    picstore_command("index", tmp_path / "in", tmp_path / "index")
    client = make_client(picstore.Dataset(tmp_path / "index"))
    items = client.get("/api/records").json()["items"]
    assert sorted(item["foreign"] for item in items) == [False, True]
    (foreign,) = (item["position"] for item in items if item["foreign"])
    whole = np.asarray(Image.open(tmp_path / "in" / "a" / "x.png"))
    assert (pixels(client.get(f"/picture?position={foreign}").content) == whole).all()
    assert max(pixels(client.get(f"/thumbnail?position={foreign}&size=100").content).shape) == 100
    box = "left=10&top=20&width=30&height=40"
    assert (pixels(client.get(f"/crop?position={foreign}&{box}").content) == whole[20:60, 10:40]).all()
    place = client.get(f"/api/image?position={foreign}").json()["place"]
    assert place["file"].endswith("a/x.png")


def test_requests_at_once_give_the_answers_of_requests_in_turn(
    dataset: picstore.Dataset, make_client: Callable[[picstore.Dataset], TestClient]
) -> None:
    client = make_client(dataset)
    filters = [{"labels": [k % 3]} | ({"text": "thing"} if k % 2 else {}) for k in range(12)]
    paths = [f"/api/records?filter={json.dumps(each)}" for each in filters]
    paths += [f"/thumbnail?position={k}&size=32" for k in range(COUNT)]

    def get(path: str) -> Any:
        if path.startswith("/api"):
            found = make_client(dataset).get(path).json()
            return {name: value for name, value in found.items() if name != "extras"}  # how far they were read
        return client.get(path).content

    with ThreadPoolExecutor(8) as threads:
        at_once = list(threads.map(get, paths))
    assert at_once == [get(path) for path in paths]


def test_the_command_serves_on_loopback_below_a_secret_path(annotated: Path) -> None:
    require(importlib.util.find_spec("duckdb"), "duckdb")
    with serving(annotated, "--where", "label = 1") as address:
        base, _, token = address.rstrip("/").rpartition("/")
        assert base.startswith("http://127.0.0.1:")
        assert len(token) >= 43
        assert "picstore view" in httpx2.get(address).text
        assert httpx2.get(base).status_code == httpx2.get(f"{base}/api/dataset").status_code == 403
        told = httpx2.get(f"{address}api/dataset").json()
        assert (told["images"], told["stored"]) == (COUNT // 3, COUNT)


@pytest.mark.parametrize("number", slow_except([], [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_ends_the_command_at_once_also_while_a_condition_runs(tmp_path: Path, number: int) -> None:
    with picstore.Writer(tmp_path / "set") as writer:
        for _ in range(2):
            writer.add(picture(1))
    text = "x" * 8_000_000
    picstore.Dataset(tmp_path / "set").with_columns({"long": [text, text]}).save()
    slow = " OR ".join(f"regexp_matches(long || {k}, '(x?x?x?x?x?x?y)+z')" for k in range(40))
    with started(tmp_path / "set") as (process, address), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(_ask, f"{address}api/records", {"filter": json.dumps({"where": slow})})
        time.sleep(0.5)
        assert not asked.done()
        process.send_signal(number)
        assert process.wait(timeout=10) == -number
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_signal_ends_the_command_while_an_image_is_decoded_without_end(tmp_path: Path, number: int) -> None:
    index = index_endless_image(tmp_path)
    with started(index) as (process, address), ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(_ask, f"{address}thumbnail", {"position": str(k), "size": "64"}) for k in range(2)]
        wait(asked, timeout=60, return_when=FIRST_COMPLETED)
        assert [each.done() for each in asked].count(False) == 1
        assert httpx2.get(f"{address}api/dataset", timeout=60).json()["images"] == 2
        process.send_signal(number)
        assert process.wait(timeout=10) == -number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "asked"),
    slow_except(
        [(signal.SIGINT, 0), (signal.SIGTERM, 16), (signal.SIGINT, 16)],
        product([signal.SIGTERM, signal.SIGINT], [0, 16]),  # SIGTERM in idle: the test below
        mark=pytest.mark.nightly,
    ),
)
def test_a_signal_ends_the_command_at_once_idle_and_with_thumbnails(
    dataset: picstore.Dataset, number: int, asked: int
) -> None:
    """Each client asks for one thumbnail after the other, of sizes that no request before had."""
    with started(dataset.path) as (process, address), ThreadPoolExecutor(16) as threads:
        assert httpx2.get(f"{address}api/dataset", timeout=60).json()["images"] == COUNT
        answered: Counter[int] = Counter()

        def ask_on(client: int) -> None:
            with contextlib.suppress(httpx2.HTTPError):
                for size in range(64, 512):
                    parameters = {"position": str(client), "size": str(size)}
                    answered[httpx2.get(f"{address}thumbnail", params=parameters, timeout=60).status_code] += 1

        clients = [threads.submit(ask_on, client) for client in range(asked)]
        while answered.total() < asked:
            time.sleep(0.01)
        assert not any(client.done() for client in clients)
        process.send_signal(number)
        assert process.wait(timeout=10) == -number
    assert set(answered) <= {200}


@pytest.mark.slow
def test_a_signal_that_another_thread_takes_ends_the_command(dataset: picstore.Dataset) -> None:
    """The system chooses the thread."""
    with started(dataset.path) as (process, address):
        httpx2.get(address, timeout=60)
        # The signal is lost with a thread that ends: threads that load tables and kernels end soon after the start.
        threads, before = _threads(process.pid), set[int]()
        while threads != before:
            time.sleep(0.5)
            threads, before = _threads(process.pid), threads
        kill = ctypes.CDLL(None).tgkill  # which fails for a thread that has ended meanwhile
        assert any(kill(process.pid, thread, signal.SIGTERM) == 0 for thread in sorted(threads, reverse=True))
        assert process.wait(timeout=60) == -signal.SIGTERM


def _threads(pid: int) -> set[int]:
    """Threads besides the main one that the system may choose for SIGTERM; jemalloc's thread blocks signals."""
    found = set()
    for entry in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # The thread has ended.
            fields = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines())
            if not int(fields["SigBlk"], 16) >> signal.SIGTERM - 1 & 1:
                found.add(int(entry.name))
    return found - {pid}


def _ask(address: str, parameters: dict[str, str]) -> None:
    with contextlib.suppress(httpx2.HTTPError):
        httpx2.get(address, params=parameters, timeout=60)


def test_open_gives_the_browser_a_file_that_leads_to_the_address(annotated: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$0.told"\n')
    browser.chmod(0o700)
    with serving(annotated, "--open", environment={"BROWSER": f"{browser} %s"}) as address:
        token = address.rstrip("/").rpartition("/")[2]
        told = tmp_path / "browser.told"
        while not told.exists() or not told.read_text():
            time.sleep(0.01)
        assert token not in told.read_text()
        file = Path(told.read_text().strip().removeprefix("file://"))
        assert address in file.read_text()
    assert not file.parent.exists()


def test_a_port_that_is_taken_is_wrong_usage(annotated: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in picstore_command("view", annotated, "--port", port, code=2).stderr


def test_without_starlette_the_command_says_what_to_install(annotated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picstore.verbs.view.find_spec", lambda name: None)
    assert "[view]" in picstore_command("view", annotated, code=4).stderr


def test_the_page_can_ask_whether_kernels_are_being_compiled(client: TestClient) -> None:
    assert client.get("api/kernels").json() == {"compiling": False}
    with ahead._noted():
        assert client.get("api/kernels").json() == {"compiling": True}
    assert client.get("api/kernels").json() == {"compiling": False}


def test_python_waits_for_the_threads_of_a_page_before_it_ends(annotated: Path) -> None:
    # A thread that loads kernels is inside LLVM's C++, in which Python would end it by an exception: an abort.
    program = "import picstore, sys; picstore.view(sys.argv[1]).close()"
    for _ in range(4):
        ended = subprocess.run([sys.executable, "-c", program, str(annotated)], capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr


def test_a_program_that_ends_waits_for_a_thread_of_the_viewer() -> None:
    program = """if True:
        import time
        from picstore.viewer.background import ending, start_thread
        start_thread(lambda: (ending.wait(), time.sleep(0.1), print("ended")))"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"ended\n"


def test_work_of_the_viewer_that_a_programs_end_refuses_says_nothing() -> None:
    program = """if True:
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from picstore.viewer.background import start_thread
        start_thread(lambda: (threading.main_thread().join(), ThreadPoolExecutor().submit(print)))"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
