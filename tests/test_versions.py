"""This version reads what earlier ones wrote, and makes the same batches; tests/fixtures/versions/README.md."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import picstore_command, picstore_json
from versions import describe_batch, describe_dataset, find_name, parameters, verbs

import picstore
from picstore.prepare.convert import ledger
from picstore.storage.location.resolve import locate

VERSIONS = Path(__file__).parent / "fixtures" / "versions"
RELEASES = sorted(path for path in VERSIONS.iterdir() if path.is_dir())


def read_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def loaders_of(release: Path) -> dict[str, Any]:
    """The functions that make a version's loaders, by name."""
    spec = importlib.util.spec_from_file_location("loaders", release / "loaders.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.LOADERS)


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request: pytest.FixtureRequest) -> Path:
    """The folder of each version."""
    return Path(request.param)


def test_the_files_of_earlier_versions_are_as_they_wrote_them(release: Path) -> None:
    lines = (release / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert {name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in sums} == sums
    files = {str(path.relative_to(release)) for path in (release / "data").rglob("*") if path.is_file()}
    assert files <= set(sums)


def test_data_sets_of_earlier_versions_read_as_they_were(release: Path) -> None:
    about, records = json.loads((release / "about.json").read_text()), read_lines(release / "records.jsonl")
    for name, expected in about["datasets"].items():
        found = describe_dataset(picstore.Dataset(release / "data" / name))
        assert found.pop("records") == [
            {key: value for key, value in record.items() if key != "dataset"}
            for record in records
            if record["dataset"] == name
        ]
        assert found == expected
    parts = picstore.Dataset(release / "data" / "shuffled").split(0.6, seed=1)
    assert [part.ids.tolist() for part in parts] == about["split"]


def test_loaders_make_the_batches_of_earlier_versions(release: Path) -> None:
    expected = read_lines(release / "batches.jsonl")
    for name, make in loaders_of(release).items():
        loader = make(release / "data")
        found = [
            {"loader": name, "epoch": epoch, "batch": number, **describe_batch(batch)}
            for epoch in range(2)
            for number, batch in enumerate(loader)
        ]
        loader.close()
        assert found == [line for line in expected if line["loader"] == name]


def test_states_of_earlier_versions_go_on_with_their_next_batch(release: Path) -> None:
    expected, make = read_lines(release / "batches.jsonl"), loaders_of(release)
    for line in read_lines(release / "states.jsonl"):
        name = line["loader"]
        loader = make[name](release / "data")
        loader.load_state_dict(line["state"])
        found = [describe_batch(batch) for batch in loader]
        loader.close()
        assert found == [
            {key: value for key, value in each.items() if key not in ("loader", "epoch", "batch")}
            for each in expected
            if each["loader"] == name and each["epoch"] == 1 and each["batch"] >= 2
        ]


def test_an_audit_of_an_earlier_versions_state_lists_its_batches(release: Path) -> None:
    """The batches are as that version wrote them; repeated augmentation has several images of a record in a batch."""
    written, make = read_lines(release / "batches.jsonl"), loaders_of(release)
    for line in read_lines(release / "states.jsonl"):
        loader = make[line["loader"]](release / "data")
        audited = picstore.audit(line["state"], loader)
        samples = audited.samples()
        samples = samples[samples["rank"] == getattr(loader.order, "shard", loader.order).rank]
        mine = [each for each in written if each["loader"] == line["loader"] and each["epoch"] == 0]
        mine += [each for each in written if each["loader"] == line["loader"] and each["epoch"] == 1][:2]
        assert audited.steps == len(mine)
        for step, batch in enumerate(mine):
            ids = samples["id"][samples["step"] == step].tolist()
            assert sorted(batch["ids"]) == sorted(ids * (len(batch["ids"]) // len(ids)))


def test_a_checkpoint_of_an_earlier_version_gives_its_state(release: Path) -> None:
    checkpoint = torch.load(release / "checkpoint.pt", weights_only=True)
    loader = loaders_of(release)["plain"](release / "data")
    loader.load_state_dict(checkpoint["loader"])
    state = loader.state_dict()
    assert {**state, **checkpoint["loader"]} == state


def test_ledgers_of_earlier_versions_are_read_and_continued(release: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(release / "data" / "train", tmp_path / "train"))
    tally = ledger.tally_lines(ledger.read_lines(locate(path / "ledger.jsonl")))
    dataset = picstore.Dataset(path)
    assert tally.outcome() == dataset.manifest.provenance["outcome"]
    photos = tmp_path / "photos" / "ant"
    photos.mkdir(parents=True)
    (photos / "new.jpg").write_bytes(dataset[0].jpeg)
    picstore_command("convert", tmp_path / "photos", path, "--append", "--workers", 1)
    assert picstore.Dataset(path).ids.tolist() == [*dataset.ids.tolist(), max(dataset.ids) + 1]


def test_data_sets_of_earlier_versions_are_sound_edited_and_shuffled(release: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(release / "data", tmp_path / "data"))
    for path in filter(Path.is_dir, data.iterdir()):
        assert picstore_json("verify", "--decode", "--workers", 1, path)["ok"]
        before = picstore.Dataset(path)
        first = int(before.ids[0])
        before.without([first]).with_columns({"kept": before.ids[1:]}).save()
        after = picstore.Dataset(path)
        assert after.ids.tolist() == before.ids.tolist()[1:] == list(after.table["kept"])
        assert picstore.Dataset(path, version=before.uuid).ids.tolist() == before.ids.tolist()
    picstore_command("shuffle", data / "edited", tmp_path / "copy", "--workers", 1)
    assert sorted(picstore.Dataset(tmp_path / "copy").ids.tolist()) == sorted(
        picstore.Dataset(data / "edited").ids.tolist()
    )


def test_public_names_of_earlier_versions_stay(release: Path) -> None:
    frozen = json.loads((release / "names.json").read_text())
    for name, before in frozen["names"].items():
        found = parameters(find_name(name))
        if before:
            every = {*found["positional"], *found["keyword"]}
            assert found["positional"][: len(before["positional"])] == before["positional"], name
            assert every >= {*before["keyword"]}, name
    now = dict(verbs())
    for verb, options in frozen["verbs"].items():
        assert {*now[verb]} >= {option for option in options if option.startswith("-")}, verb
