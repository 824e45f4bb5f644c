"""Health: the map of files and containers, verification in the background, the ledger and what failed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import picstore_command, picstore_json
from samples import jpeg
from starlette.testclient import TestClient
from view_page import BASE, TOKEN

import picstore
from picstore.errors import UsageError
from picstore.viewer.health import Verification
from picstore.viewer.ledger_summary import read_input, summarize_ledger
from picstore.viewer.records import Records
from picstore.viewer.server import make_app
from picstore.viewer.session import Session

Make = Callable[..., Path]


@pytest.fixture
def converted(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of inputs, of which one is no image and two are equal, and the dataset made of it."""
    inputs = tmp_path / "in"
    (inputs / "a").mkdir(parents=True)
    for number in range(5):
        (inputs / "a" / f"{number}.jpg").write_bytes(jpeg(number))
    (inputs / "a" / "5.jpg").write_bytes(jpeg(2))
    (inputs / "a" / "broken.jpg").write_bytes(jpeg(6)[:300])
    picstore_command("convert", inputs, tmp_path / "set", "--max-errors", 3, "--dedupe")
    return inputs, tmp_path / "set"


def client_of(path: Path, inputs: Path | None = None) -> TestClient:
    app = make_app(Session(Records(picstore.Dataset(path)), inputs=inputs), token=TOKEN)
    return TestClient(app, base_url=BASE)


def finished(client: TestClient) -> dict[str, Any]:
    """Wait for the verification; returns its report."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        report: dict[str, Any] = client.get("/api/health/verification").json()
        if report["state"] != "running":
            return report
        time.sleep(0.02)
    pytest.fail("the verification did not end")


def test_the_map_lists_every_file_and_container(make_dataset: Make) -> None:
    path = make_dataset(50)
    client, dataset = client_of(path), picstore.Dataset(path)
    told = client.get("/api/health").json()
    assert {each["name"] for each in told["files"]} == {str(each.relative_to(path)) for each in path.glob("*/*.pic")}
    assert sum(each["records"] for each in told["files"]) == 50
    assert sum(each["containers"] for each in told["files"]) == len(dataset.rows)
    seen = []
    for each in told["files"]:
        containers = client.get("/api/health/file", params={"stream": each["stream"], "file": each["file"]}).json()
        assert len(containers) == each["containers"]
        assert sum(container["records"] for container in containers) == each["records"]
        seen += containers
    for container in seen:
        assert dataset.live.find(np.array([container["position"]]))[0][0] == container["number"]


def test_a_verification_reports_what_the_command_does(make_dataset: Make) -> None:
    path = make_dataset(50)
    client = client_of(path)
    assert client.get("/api/health/verification").json()["state"] == "idle"
    ref = picstore.Dataset(path).containers.container_ref(1)
    raw = bytearray((path / ref.name).read_bytes())
    raw[ref.offset + 3000] ^= 1
    (path / ref.name).write_bytes(raw)
    assert client.post("/api/health/verify").json()["state"] in ("running", "done")
    report = finished(client)
    assert (report["state"], report["done"]) == ("done", 50)
    assert report["findings"] == picstore_json("verify", path, code=3)["damage"]
    assert report["findings"][0]["file"] == ref.name


def test_a_sound_dataset_is_verified_and_a_missing_one_is_a_failure(make_dataset: Make) -> None:
    path = make_dataset(20)
    client = client_of(path)
    client.post("/api/health/verify?decode=true")
    report = finished(client)
    assert (report["state"], report["findings"], report["decode"]) == ("done", [], True)
    (path / "picstore.json").unlink()
    client.post("/api/health/verify")
    report = finished(client)
    assert report["state"] == "failed"
    assert "picstore.json" in report["problem"]


def test_datasets_that_are_shown_as_one_are_not_verified(make_dataset: Make) -> None:
    joined = picstore.Dataset(make_dataset(5, name="one")).concat(picstore.Dataset(make_dataset(5, name="two")))
    with pytest.raises(UsageError, match="verify each with `picstore verify`"):
        Verification(joined).start(decode=False)


def test_one_verification_runs_at_a_time_and_is_cancelled(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from picstore.viewer import health

    def endless(_: Any, *, progress: Any, **__: Any) -> None:
        progress.set_total(10, 0)
        while True:
            progress.advance(1)
            time.sleep(0.01)

    monkeypatch.setattr(health, "verify", endless)
    client = client_of(make_dataset(20))
    assert client.post("/api/health/verify").json()["state"] == "running"
    assert client.post("/api/health/verify").status_code == 400
    client.post("/api/health/cancel")
    assert finished(client)["state"] == "cancelled"
    assert client.post("/api/health/verify").json()["state"] == "running"
    client.post("/api/health/cancel")
    finished(client)


def test_cancelling_ends_the_processes(make_dataset: Make) -> None:
    from multiprocessing import active_children

    from picstore.viewer.health import Verification

    running = Verification(picstore.Dataset(make_dataset(400)))
    running.start(decode=True)
    running.cancel()
    end = time.monotonic() + 60
    while running.report.state == "running" and time.monotonic() < end:
        time.sleep(0.01)
    assert running.report.state in ("cancelled", "done")  # a fast machine may be done before
    assert active_children() == []


def test_the_ledger_is_summed_up_by_reason_with_its_inputs(converted: tuple[Path, Path]) -> None:
    inputs, path = converted
    told = client_of(path, inputs).get("/api/health/ledger").json()
    assert told["statuses"] == {"lossless": 5, "failed": 1, "duplicate": 1}
    dataset = picstore.Dataset(path)
    for reason in told["reasons"]:
        assert reason["inputs"] == len(reason["examples"])
        for line in reason["examples"]:
            if reason["status"] == "lossless":
                assert dataset[line["position"]].id == line["id"]
            else:
                assert line["position"] == -1
    (failed,) = (reason for reason in told["reasons"] if reason["status"] == "failed")
    assert failed["examples"][0]["input"] == "a/broken.jpg"


def test_a_ledger_of_many_reasons_keeps_a_bounded_number_apart(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("picstore.viewer.ledger_summary._MAX_COUNTED", 20)
    path = make_dataset(20)
    write_ledger(path, [("failed", f"reason {number}") for number in range(1000)])
    summary = summarize_ledger(picstore.Dataset(path))
    assert summary.statuses == {"failed": 1000}
    assert len(summary.reasons) == 21
    assert (summary.reasons[0].reason, summary.reasons[0].inputs) == ("other", 980)
    write_ledger(path, [(f"status {number}", "") for number in range(1000)])
    summary = summarize_ledger(picstore.Dataset(path))
    assert summary.statuses["other"] == 980
    assert len(summary.statuses) == len(summary.reasons) == 21


def test_a_ledger_names_files_whose_names_are_no_utf_8(make_dataset: Make) -> None:
    path = make_dataset(20)
    write_ledger(path, [("failed", "of \udcff.png")])
    told = client_of(path).get("/api/health/ledger")
    assert told.json()["reasons"][0]["reason"] == "of \udcff.png"


def write_ledger(path: Path, lines: list[tuple[str, str]]) -> None:
    """Write a ledger of inputs with a status and a reason each."""
    made = [
        {"input": f"{k}.jpg", "id": k, "status": status, "reason": reason, "source_bytes": 1, "bytes": 0}
        for k, (status, reason) in enumerate(lines)
    ]
    (path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))


def test_a_dataset_without_a_ledger_has_none(make_dataset: Make) -> None:
    path = make_dataset(20)
    assert client_of(path).get("/api/health/ledger").json() == {"statuses": {}, "reasons": []}
    joined = picstore.Dataset(path).concat(picstore.Dataset(path))
    assert summarize_ledger(joined).reasons == []


def test_failed_inputs_are_shown_from_the_folder_that_was_given_alone(
    converted: tuple[Path, Path], tmp_path: Path
) -> None:
    inputs, path = converted
    client = client_of(path, inputs)
    shown = client.get("/input", params={"name": "a/broken.jpg"})
    assert shown.content == (inputs / "a" / "broken.jpg").read_bytes()
    assert shown.headers["content-type"] == "image/jpeg"
    assert client.get("/input", params={"name": "a/none.jpg"}).status_code == 400
    assert client_of(path).get("/input", params={"name": "a/broken.jpg"}).status_code == 400
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (inputs / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (inputs / "notes.txt").write_text("text")
    os.mkfifo(inputs / "pipe.jpg")
    for name in (
        "../secret.jpg",
        "link.jpg",
        "/etc/passwd",
        "notes.txt",
        "a",
        "pipe.jpg",
        "x\0.jpg",
        str(tmp_path / "secret.jpg"),
    ):
        with pytest.raises(UsageError):
            read_input(inputs, name)
