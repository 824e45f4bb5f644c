"""Recipes and replay: the images that the page shows are those of a loader, with what was drawn for them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import picstore_command
from PIL import Image
from starlette.testclient import TestClient
from view_page import BASE, COUNT, TOKEN

import picstore
from picstore import recipes
from picstore.errors import UsageError
from picstore.train.saved_states import find_state, read_states
from picstore.train.transforms import opcodes
from picstore.viewer.drawn import Recipe
from picstore.viewer.records import Records
from picstore.viewer.server import make_app
from picstore.viewer.session import Session

Query = dict[str, str | int | float | None]
FILE = """
seed = 5
transform = [
    { name = "RandomResizedCrop", size = 32 },
    { name = "RandomHorizontalFlip" },
    { name = "ColorJitter", brightness = 0.4 },
]
"""


def shown(client: TestClient, path: str, **query: Any) -> np.ndarray:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content)))


def levels(images: torch.Tensor, mean: Any = recipes.IMAGENET_MEAN, std: Any = recipes.IMAGENET_STD) -> np.ndarray:
    """Undo a normalization of images (…, 3, H, W): uint8 (…, H, W, 3)."""
    values = images.double() * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    return np.asarray((values * 255).round().clamp(0, 255).to(torch.uint8).movedim(-3, -1))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(FILE)
    return path


TURNED = """
[[transform]]
name = "RandomResizedCrop"
size = 32
ratio = [1, 1]

[[transform]]
name = "RandomRotation"
degrees = [20, 20]
"""


@pytest.fixture
def client_of(dataset: picstore.Dataset) -> Callable[..., TestClient]:
    """Makes a client of a server with a recipe and a state."""

    def make(recipe: Path | str | None = None, state: Any = None) -> TestClient:
        app = make_app(Session(Records(dataset), None if recipe is None else str(recipe), state), token=TOKEN)
        return TestClient(app, base_url=BASE)

    return make


def test_a_turned_crop_is_told_by_its_sides_and_angle(client_of: Callable[..., TestClient], tmp_path: Path) -> None:
    (tmp_path / "turned.toml").write_text(TURNED)
    query: Query = {"recipe": str(tmp_path / "turned.toml"), "position": 7, "count": 1}
    (image,) = client_of(tmp_path / "turned.toml").get("/api/draws", params=query).json()["images"]
    assert image["parameters"][1] in ("turned by 20°", "turned by -20°")


def test_what_a_recipe_draws_are_the_images_of_a_loader_epoch_by_epoch(
    client_of: Callable[..., TestClient], file: Path, dataset: picstore.Dataset
) -> None:
    client = client_of(file)
    query: Query = {"recipe": str(file), "position": 7, "seed": 5, "epoch": 2, "count": 3}
    drawn = client.get("/api/draws", params=query).json()
    assert [image["slot"] for image in drawn["images"]] == [0, 1, 2]
    items = picstore.MapDataset(dataset, transform=Recipe.find(str(file)).transform, seed=5)
    for number in range(3):
        items.set_epoch(2 + number)
        expected = items[7][0].permute(1, 2, 0).numpy()
        assert (shown(client, "/drawn", **query, image=number) == expected).all()
    left, top = drawn["images"][0]["frame"][0]
    assert 0 <= left <= dataset[7].width and 0 <= top <= dataset[7].height
    assert any(text.startswith("brightness ×") for text in drawn["images"][0]["parameters"])
    assert drawn["steps"] == ["RandomResizedCrop, RandomHorizontalFlip, ColorJitter"]


def test_every_step_of_color_except_normalization_has_words() -> None:
    lacking = [
        code for code in range(1, opcodes.NORMALIZE) if not opcodes.describe_step(code, [1.0] * opcodes.OPERANDS)
    ]
    assert lacking == []


@pytest.mark.parametrize("name", sorted(recipes.NAMED))
def test_every_named_recipe_is_drawn_and_described(client: TestClient, name: str) -> None:
    query: Query = {"recipe": name, "position": 3, "count": 2}
    drawn = client.get("/api/draws", params=query).json()
    views = getattr(recipes.NAMED[name](), "groups", {"": (1, [])})
    assert len(drawn["images"]) == 2 * sum(count for count, _ in views.values())
    for number, image in enumerate(drawn["images"]):
        assert shown(client, "/drawn", **query, image=number).shape[:2] == (image["height"], image["width"])
        assert len(image["frame"]) == 4
        assert " × " in image["parameters"][0]
    offered = client.get("/api/recipes").json()["recipes"]
    assert name in [each["name"] for each in offered]


def test_the_frame_is_where_the_image_was_cut_out(client: TestClient, dataset: picstore.Dataset) -> None:
    """Of an evaluation, whose crop is known: the middle of an image, resized to 256 pixels."""
    (image,) = client.get("/api/draws?recipe=evaluation&position=5&count=1").json()["images"]
    width, height = dataset[5].width, dataset[5].height
    side = 224 / 256 * min(width, height)
    (left, top), (right, _), (_, bottom), _ = image["frame"]
    assert right - left == pytest.approx(side, rel=0.02)
    assert bottom - top == pytest.approx(side, rel=0.02)
    assert (left + right) / 2 == pytest.approx(width / 2, abs=1.5)
    assert (top + bottom) / 2 == pytest.approx(height / 2, abs=1.5)


def test_a_batch_is_replayed_with_pixels_ids_and_labels(client: TestClient, dataset: picstore.Dataset) -> None:
    query: Query = {"recipe": "mae", "batch_size": 8, "seed": 4, "epoch": 1, "step": 2}
    told = client.get("/api/replay", params=query).json()
    loader = picstore.Loader(dataset, batch_size=8, seed=4, transform=recipes.mae(), isolate=False)
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "samples": 16})
    batch = next(iter(loader))
    assert told["state"] == loader.state_dict()
    loader.close()
    assert [int(image["id"]) for image in told["images"]] == batch.ids.tolist()
    assert [image["label"] for image in told["images"]] == batch.labels.tolist()
    assert (told["steps"], told["records"], told["damage"]) == (COUNT // 8, 8, [])
    for slot, expected in enumerate(levels(batch.images)):
        assert (np.abs(shown(client, "/replayed", **query, image=slot).astype(int) - expected) <= 1).all()


def test_a_rank_of_a_global_batch_size_is_replayed(client: TestClient, dataset: picstore.Dataset) -> None:
    query: Query = {"recipe": "simclr", "global_batch_size": 11, "rank": 2, "world_size": 3, "lanes": 5}
    shown = client.get("/api/replay", params=query).json()
    loader = picstore.Loader(
        dataset, global_batch_size=11, transform=picstore.recipes.simclr(), rank=2, world_size=3, lanes=5, isolate=False
    )
    assert shown["state"] == loader.order.state(0, 1) and shown["records"] == loader.batch_size == 3
    assert [int(image["id"]) for image in shown["images"]][::2] == loader.make_batch(0, 0)[0].ids.tolist()


def test_a_training_with_a_reducing_gap_is_replayed(client: TestClient, dataset: picstore.Dataset) -> None:
    query: Query = {"recipe": "simclr", "batch_size": 8, "reducing_gap": 1.5}
    told = client.get("/api/replay", params=query).json()
    assert told["state"]["reducing_gap"] == 1.5
    assert "reducing_gap" not in client.get("/api/replay", params={**query, "reducing_gap": 0}).json()["state"]
    state = json.dumps(told["state"])
    assert client.get("/api/replay/position", params={**query, "state": state}).json() == {"epoch": 0, "step": 0}
    refused = client.get("/api/replay/position", params={**query, "reducing_gap": 0, "state": state})
    assert refused.status_code == 400 and "reducing_gap" in refused.text
    assert client.get("/api/replay", params={**query, "reducing_gap": 0.5}).status_code == 400


def test_views_and_mixed_labels_are_replayed(client_of: Callable[..., TestClient], tmp_path: Path) -> None:
    query: Query = {"recipe": "simclr", "batch_size": 5, "step": 1}
    images = client_of().get("/api/replay", params=query).json()["images"]
    assert [(image["slot"], image["group"], image["view"]) for image in images[:4]] == [
        (0, "views", 0),
        (0, "views", 1),
        (1, "views", 0),
        (1, "views", 1),
    ]
    mixed = tmp_path / "mixed.toml"
    mixed.write_text('transform = [{ name = "RandomResizedCrop", size = 32 }, { name = "CutMix" }]')
    told = client_of(mixed).get("/api/replay", params={"recipe": str(mixed), "batch_size": 12}).json()
    assert len(told["mixed"]) == 12
    assert all(sum(share for _, share in shares) == pytest.approx(1, abs=0.01) for shares in told["mixed"])


def test_a_large_batch_is_shown_in_parts(client: TestClient, dataset: picstore.Dataset) -> None:
    query: Query = {"recipe": "evaluation", "batch_size": 100, "repeat": 3, "first": 64}
    told = client.get("/api/replay", params=query).json()
    assert [image["slot"] for image in told["images"]] == list(range(64, 100))
    assert told["records"] == 100


def test_a_state_leads_to_the_batch_before_it(client: TestClient, dataset: picstore.Dataset) -> None:
    loader = picstore.Loader(dataset, batch_size=6, seed=9, transform=recipes.mae(), isolate=False)
    batches = iter(loader)
    for _ in range(4):
        last = next(batches)
    run: Query = {"recipe": "mae", "batch_size": 6, "seed": 9}
    state = json.dumps({"step": 4, "loaders": [{"loader": loader.state_dict()}]})
    place = client.get("/api/replay/position", params={**run, "state": state}).json()
    assert place == {"epoch": 0, "step": 3}
    told = client.get("/api/replay", params={**run, **place}).json()
    assert [int(image["id"]) for image in told["images"]] == last.ids.tolist()
    loader.close()
    begun = {**loader.state_dict(), "samples": 0}
    for epoch, expected in ((0, {"epoch": 0, "step": 0}), (2, {"epoch": 1, "step": 5})):
        text = json.dumps({**begun, "epoch": epoch})
        assert client.get("/api/replay/position", params={**run, "state": text}).json() == expected


@pytest.mark.parametrize("change", [{"seed": 1}, {"dataset": "another"}, {"samples": 7}, {"samples": "x"}])
def test_a_state_of_another_training_is_refused(
    client: TestClient, dataset: picstore.Dataset, change: dict[str, Any]
) -> None:
    loader = picstore.Loader(dataset, batch_size=6, transform=recipes.mae(), isolate=False)
    state = json.dumps({**loader.state_dict(), "samples": 12, **change})
    answer = client.get("/api/replay/position", params={"recipe": "mae", "batch_size": 6, "state": state})
    assert answer.status_code == 400


def test_the_steps_at_which_an_image_is_seen_lead_to_batches_that_hold_it(client: TestClient) -> None:
    run: Query = {"recipe": "evaluation", "batch_size": 5, "seed": 2, "world_size": 2}
    number = client.get("/api/records?start=11&count=1").json()["items"][0]["id"]
    seen = client.get("/api/replay/steps", params={**run, "position": 11, "epochs": 8}).json()
    assert [each["epoch"] for each in seen] == list(range(8))
    places = [(each["epoch"], place) for each in seen for place in each["places"]]
    assert len(places) >= 4
    for epoch, place in places:
        query = {**run, "epoch": epoch, "step": place["step"], "rank": place["rank"]}
        images = client.get("/api/replay", params=query).json()["images"]
        assert images[place["slot"]]["id"] == number


@pytest.mark.parametrize(
    "path",
    [
        "/api/draws?recipe=no-such&position=0",
        "/api/draws?recipe=/etc/passwd.toml&position=0",
        "/api/draws?recipe=mae&position=36",
        "/api/draws?recipe=mae&position=0&count=65",
        "/drawn?recipe=mae&position=0&count=1&image=1",
        "/api/replay?recipe=mae&batch_size=8&step=4",
        "/api/replay?recipe=mae&batch_size=0",
        "/api/replay?recipe=mae&batch_size=8&rank=3",
        "/api/replay?recipe=mae&batch_size=8&balance=no",
        "/api/replay?recipe=mae&batch_size=8&repeat=nan",
        "/api/replay/position?recipe=mae&batch_size=8&state=[",
        "/api/replay/position?recipe=mae&batch_size=8&state={}",
    ],
)
def test_wrong_trainings_are_refused_with_a_reason(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_the_given_recipe_comes_first_with_its_options_and_the_state(
    client_of: Callable[..., TestClient], file: Path
) -> None:
    told = client_of(file, {"seed": 1}).get("/api/recipes").json()
    assert told["recipes"][0]["name"] == str(file)
    assert (told["options"]["seed"], told["state"]) == (5, {"seed": 1})
    assert client_of("simclr").get("/api/recipes").json()["recipes"][0]["name"] == "simclr"


def test_a_state_is_found_in_a_checkpoint_and_wrong_files_are_wrong_usage(annotated: Path, tmp_path: Path) -> None:
    loader = picstore.Loader(annotated, batch_size=4, transform=recipes.mae(), isolate=False)
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({"epoch": 3, "callbacks": [1, {"data": loader.state_dict()}]}))
    assert read_states(path) == [("checkpoint.json: callbacks, 1, data", loader.state_dict())]
    for text in ("{}", "[", '{"epoch": 1}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"checkpoint\.json"):
            read_states(path)
        picstore_command("view", annotated, "--state", path, code=2)
    picstore_command("view", annotated, "--state", tmp_path / "none.json", code=2)
    picstore_command("view", annotated, "--recipe", "no-such", code=2)
    with pytest.raises(UsageError):
        find_state([{"seed": 1}])
