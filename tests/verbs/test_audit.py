"""An audit says of every step what loaders delivered, and of every record what became of it."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import picstore_command
from grids import examples
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError

Make = Callable[..., Path]
Delivered = list[tuple[int, int, int, int, int]]  # step, rank, slot, source and id of each sample
SMALL = [picstore.CenterCrop(8)]
COLUMNS = ["step", "rank", "slot", "source", "id"]
DOCS = Path(__file__).parents[2] / "docs"
# Plain batches: one thread, in this process.
PLAIN: dict[str, Any] = {"transform": SMALL, "isolate": False, "threads": 1}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory, make_dataset_once: Any) -> list[Path]:
    """Datasets of several containers with a column of weights, one of them with deletions."""
    from picstore.prepare.convert.row_division import DatasetShape

    made = []
    for count in (43, 17):
        shape = DatasetShape(streams=2, container_size=1 << 13, file_size=1 << 15)
        root = tmp_path_factory.mktemp("audited") / str(count)
        with picstore.Writer(root, classes=["a", "b"], shape=shape) as writer:
            for k, record in enumerate(picstore.Dataset(make_dataset_once(count, 2, shape, 24, 16))):
                writer.add(record.jpeg, label=record.label, extra={"path": f"photos/{k}.jpg"})
        opened = picstore.Dataset(root)
        opened = opened.with_columns({"score": (opened.ids % 4).astype(float)})
        opened.without([5, 11] if count > 20 else []).save()
        made.append(root)
    return made


def delivered(loaders: list[Any], steps: int, *, first: int = 0, source_of: Any = lambda label: 0) -> Delivered:
    """The samples of ``steps`` batches of each rank's loader, iterated from where it stands, epoch after epoch."""
    found: Delivered = []
    for rank, loader in enumerate(loaders):
        batches = (batch for _ in range(99) for batch in loader)
        for step, batch in enumerate(islice(batches, steps), start=first):
            pairs = zip(batch.ids.tolist(), batch.labels.tolist(), strict=True)
            found += [(step, rank, slot, source_of(label), id_) for slot, (id_, label) in enumerate(pairs)]
    return sorted(found)


def assert_audited(audited: Any, expected: Delivered) -> None:
    """Compare all answers with what was delivered: samples, counts, steps of ids, and unseen records."""
    assert audited.samples()[COLUMNS].tolist() == expected
    middle = audited.steps // 2
    assert audited.samples(middle)[COLUMNS].tolist() == [each for each in expected if each[0] >= middle]
    for source, dataset in enumerate(audited.datasets):
        mine = [each for each in expected if each[3] == source]
        times = Counter(each[4] for each in mine)
        assert audited.counts(source=source).tolist() == [times[id_] for id_ in dataset.ids.tolist()]
        assert audited.unseen(source=source).tolist() == [id_ for id_ in dataset.ids.tolist() if not times[id_]]
        for asked in (dataset.ids[:3], dataset.ids):
            chosen = [each for each in mine if each[4] in asked]
            assert audited.find(asked, source=source)[COLUMNS].tolist() == chosen


@st.composite
def trainings(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a Loader and of its run."""
    ranks = draw(st.sampled_from([1, 1, 2, 3]))
    options: dict[str, Any] = {
        "global_batch_size": draw(st.integers(ranks, 13)),
        "seed": draw(st.sampled_from([0, 7, 2**63])),
        "drop_last": draw(st.booleans()),
        "shuffle": draw(st.booleans()),
        "lanes": draw(st.sampled_from([None, 1, 5, 32])),
        **draw(st.sampled_from([{}, {}, {"weights": "score"}, {"balance": "label"}, {"repeat": 2.3}, {"repeat": 0.6}])),
    }
    run = {"ranks": ranks, "later": draw(st.sampled_from([1, 2, 4])), "selected": draw(st.booleans())}
    return {"options": options, **run, "steps": draw(st.integers(0, 12)), "more": draw(st.integers(0, 5))}


@examples(50)
@given(trainings())
def test_an_audit_lists_what_loaders_delivered_across_a_resume(roots: list[Path], training: dict[str, Any]) -> None:
    dataset: Any = picstore.Dataset(roots[0])
    if training["selected"]:
        dataset = dataset.select(dataset.ids % 3 > 0)
    options, whole = training["options"], {**PLAIN, **training["options"]}

    def make(ranks: int, **more: Any) -> list[picstore.Loader]:
        return [picstore.Loader(dataset, rank=rank, world_size=ranks, **whole, **more) for rank in range(ranks)]

    def state_after(loaders: list[picstore.Loader], steps: int) -> dict[str, Any]:
        return loaders[0].state_at(*divmod(steps, len(loaders[0])))

    try:
        loaders = make(training["ranks"])
    except UsageError:
        return
    steps, later = training["steps"], training["later"]
    expected, state = delivered(loaders, steps), state_after(loaders, steps)
    given = {name: options[name] for name in ("weights", "balance", "repeat") if name in options}
    assert_audited(picstore.audit(state, dataset, **given), expected)
    assert_audited(picstore.audit(json.loads(json.dumps(state)), loaders[0]), expected)
    if options["drop_last"]:  # Otherwise rule 7 of docs/order.md may divide an epoch by the number of ranks.
        try:
            resumed = make(later)
        except UsageError:
            return
        for loader in resumed:
            loader.load_state_dict(state)
        expected += delivered(resumed, training["more"], first=steps)
        state = {**state_after(resumed, steps + training["more"]), "lanes": state["lanes"]}
        audited = picstore.audit(state, dataset, **given)
        names = ["step", "source", "id"]
        assert sorted(audited.samples()[names].tolist()) == sorted((step, 0, id_) for step, _, _, _, id_ in expected)
        assert audited.samples(steps)[COLUMNS].tolist() == sorted(each for each in expected if each[0] >= steps)


@examples(30)
@given(
    counts=st.lists(st.tuples(st.integers(0, 9), st.integers(3, 9)), min_size=1, max_size=3),
    ranks=st.integers(1, 3),
    lanes=st.sampled_from([None, 1, 5]),
    steps=st.integers(0, 14),
    seed=st.integers(0, 9),
)
def test_an_audit_lists_what_mixtures_delivered(
    roots: list[Path], counts: list[tuple[int, int]], ranks: int, lanes: int | None, steps: int, seed: int
) -> None:
    datasets = [picstore.Dataset(root) for root in roots]
    schedule = [(4 * number, list(each)) for number, each in enumerate(counts)]
    if not any(first for first, _ in counts):
        return
    options: dict[str, Any] = {**PLAIN, "seed": seed, "lanes": lanes, "classes": "same", "global_counts": True}
    entries = [(each, 10 * number, 1) for number, each in enumerate(datasets)]
    muxes = [
        picstore.DataMux(entries, rank=rank, world_size=ranks, schedule=schedule, **options) for rank in range(ranks)
    ]
    expected, state = delivered(muxes, steps, source_of=lambda label: label // 10), muxes[0].state_at(0, steps)
    assert_audited(picstore.audit(state, muxes[0]), expected)
    if len(counts) == 1:
        assert_audited(picstore.audit(state, datasets), expected)
        assert_audited(picstore.audit(state, roots), expected)
    for mux in muxes:
        mux.close()


@pytest.mark.parametrize("counts", ["", "global_counts = true\n"])
def test_a_muxs_configuration_tells_selections_counts_and_schedule(make_dataset: Make, counts: str) -> None:
    pytest.importorskip("duckdb")
    paths = [make_dataset(30, name="one"), make_dataset(20, name="two")]
    config = paths[0].parent / "mux.toml"
    config.write_text(
        f"seed = 5\n{counts}schedule = [{{ step = 2, counts = [3, 6] }}]\n"
        '[[source]]\npath = "one"\ncount = 4\nwhere = "id % 3 < 2"\n[[source]]\npath = "two"\ncount = 2\nbase = 10\n'
    )
    muxes = [picstore.DataMux(config, rank=rank, world_size=2, classes="same", **PLAIN) for rank in range(2)]
    expected, state = delivered(muxes, 5, source_of=lambda label: label // 10), muxes[0].state_at(0, 5)
    picstore.delete(paths[1], [next(each[4] for each in expected if each[3] == 1)])
    assert_audited(picstore.audit(state, config), expected)
    told = json.loads(picstore_command("audit", write(config.parent / "s.json", state), config, "--json").stdout)
    assert [each["records"] for each in told["datasets"]] == [20, 20]
    picstore_command("audit", config.parent / "s.json", *paths, code=2)
    for mux in muxes:
        mux.close()


def test_joined_and_selected_datasets_are_audited_from_the_command_line(make_dataset: Make) -> None:
    pytest.importorskip("duckdb")
    paths = [make_dataset(30, name="one"), make_dataset(20, name="two")]
    joined = picstore.Dataset(paths[0]).concat(picstore.Dataset(paths[1]))
    chosen = joined.where("label < 3").split(0.7, seed=2)[0]
    loader = picstore.Loader(chosen, batch_size=4, **PLAIN)
    expected, state = delivered([loader], 3), write(paths[0].parent / "s.json", loader.state_at(0, 3))
    selection = ["--where", "label < 3", "--split", "0.7", "--split-seed", 2, "--part", 1]
    told = json.loads(picstore_command("audit", state, *paths, *selection, "--steps", ":", "--json").stdout)
    assert [(row["step"], row["id"]) for row in told["rows"]] == [(each[0], each[4]) for each in expected]
    assert "selection" in picstore_command("audit", state, *paths, code=2).stderr


def write(file: Path, state: dict[str, Any]) -> Path:
    file.write_text(json.dumps(state))
    return file


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_audit_lists_what_buckets_delivered(roots: list[Path], ranks: int) -> None:
    transform = picstore.Buckets([(16, 24), (16, 20)], picstore.RandomResizedCrop)
    options: dict[str, Any] = {"global_batch_size": 6, "isolate": False, "threads": 1, "world_size": ranks}
    loaders = [picstore.Loader(roots[0], rank=rank, transform=transform, **options) for rank in range(ranks)]
    steps = len(loaders[0]) + 3
    state = loaders[0].state_at(1, 3)
    assert_audited(picstore.audit(state, loaders[0]), delivered(loaders, steps))
    with pytest.raises(UsageError, match="Buckets or Sequences; make that Loader"):
        picstore.audit(state, roots[0])


@pytest.mark.parametrize("options", [{"size": 6, "drop_last": True}, {"size": 5, "drop_last": False}])
def test_an_audit_lists_the_batches_that_docs_order_py_computes(roots: list[Path], options: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        spec = importlib.util.spec_from_file_location("order_of_docs", DOCS / "order.py")
        assert spec is not None and spec.loader is not None
        order = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(order)
        sys.modules.pop("reader", None)
    ids = order.read_ids(roots[0])
    epochs = [order.batches(ids, seed=4, epoch=epoch, **options) for epoch in range(2)]
    expected = [id_ for batches in (epochs[0], epochs[1][:2]) for batch in batches for id_ in batch]
    state = {
        "version": order.VERSION, "dataset": picstore.Dataset(roots[0]).uuid, "seed": 4, "shuffle": True, "lanes": 32,
        "world_size": 1, "epoch": 1, "samples": 2 * options["size"],
    }  # fmt: skip
    audited = picstore.audit(state, roots[0], batch_size=options["size"], drop_last=options["drop_last"])
    assert audited.samples()["id"].tolist() == expected
    assert (audited.epoch, audited.batch, audited.steps) == (1, 2, len(epochs[0]) + 2)


def test_repeated_images_of_a_batch_are_one_sample(make_dataset: Make) -> None:
    loader = picstore.Loader(make_dataset(20), batch_size=6, aug_repeats=3, **PLAIN)
    batch = next(iter(loader))
    audited = picstore.audit(loader.state_dict(), loader.dataset)
    assert audited.samples()["id"].tolist() == list(dict.fromkeys(batch.ids.tolist()))
    given = {name: value for name, value in loader.state_dict().items() if name not in ("global_batch", "drop_last")}
    assert len(picstore.audit(given, loader.dataset, batch_size=6, aug_repeats=3).samples()) == 2


def test_records_are_told_apart_by_what_became_of_them(make_dataset: Make, tmp_path: Path) -> None:
    root = make_dataset(30)
    before = picstore.Dataset(root).without([3]).save()
    loader = picstore.Loader(before, batch_size=9, **PLAIN)
    for _ in loader:
        pass
    state = loader.state_dict()
    seen = set(picstore.audit(state, root).samples()["id"].tolist())
    gone = sorted(seen)[:2]
    picstore.delete(root, gone)
    (tmp_path / "more" / "class0").mkdir(parents=True)
    (tmp_path / "more" / "class0" / "new.jpg").write_bytes(bytes(before[0].jpeg))
    picstore.append(tmp_path / "more", root, workers=1)
    audited = picstore.audit(state, root)
    assert set(audited.samples()["id"].tolist()) == seen
    assert audited.status([30]) == ["added since"]
    kept = max(seen)
    assert audited.status([kept, *gone, 3, 99, -1]) == [
        "present", "deleted since", "deleted since", "deleted before", "not in this dataset", "not in this dataset",
    ]  # fmt: skip
    selected = before.select(before.ids < 20)
    of_selection = picstore.audit(picstore.Loader(selected, batch_size=9, **PLAIN).state_dict(), selected)
    assert of_selection.status([19, 21, gone[0], 3]) == ["present", "not selected", "deleted since", "deleted before"]
    assert of_selection.unseen().tolist() == selected.ids.tolist()


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": 5}, {"worker": [None, 2]}, {"seed": "x"}, {"lanes": 0}, {"world_size": -1}, {"samples": 7},
        {"epoch": 1 << 41}, {"global_batch": "4"}, {"global_batch": 0}, {"drop_last": None}, {"version": None},
        {"dataset": 3}, {"datasets": ["d"]}, {"datasets": ["d", "e"], "counts": 3, "taken": 1}, {"buckets": "b"},
    ],
)  # fmt: skip
def test_damaged_states_are_wrong_usage(roots: list[Path], wrong: dict[str, Any]) -> None:
    state = picstore.Loader(roots[0], batch_size=4, **PLAIN).state_at(0, 2)
    with pytest.raises(UsageError):
        picstore.audit({**state, **wrong}, roots[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_audit_of_workers_counts_what_was_delivered(roots: list[Path], tmp_path: Path, workers: int) -> None:
    """A StatefulDataLoader of torchdata keeps a state of each worker, in the epoch before or after its end."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    for steps in (3, 10, 13):
        loader = picstore.Loader(roots[0], batch_size=4, **PLAIN)
        batches = StatefulDataLoader(loader, batch_size=None, num_workers=workers)
        taken = islice((batch.ids.tolist() for _ in range(9) for batch in batches), steps)
        expected = [id_ for ids in taken for id_ in ids]
        torch.save({"batches": batches.state_dict()}, tmp_path / "last.pt")
        audited = picstore.audit(tmp_path / "last.pt", roots[0])
        assert (audited.steps, audited.samples()["id"].tolist()) == (steps, expected)
        assert len(audited.remarks) == 1


def test_states_of_other_datasets_and_orders_are_refused_by_name(roots: list[Path]) -> None:
    dataset, other = map(picstore.Dataset, roots)
    loader = picstore.Loader(dataset, batch_size=4, weights="score", **PLAIN)
    state = loader.state_dict()
    for of, options, text in (
        (other, {"weights": "score"}, f"of the dataset {dataset.uuid}, .* is {other.uuid}|given is {other.uuid}"),
        (roots[1], {"weights": "score"}, f"of the dataset {dataset.uuid}, .* is {other.uuid} and has no such"),
        (roots[0], {"weights": "score", "where": "score > 1"}, "given is .* selection"),
        (roots[0], {}, "weights, balance or repeat; give the Loader's"),
        (roots[0], {"balance": "label"}, "the state has weights"),
        (roots[0], {"weights": "score", "batch_size": 5}, "the state has global_batch 4, given is 5"),
        (roots[0], {"weights": "score", "drop_last": False}, "the state has drop_last True, given is False"),
        (picstore.Loader(dataset, batch_size=4, weights="score", seed=1, **PLAIN), {}, "the state has seed 0"),
        (picstore.Loader(dataset, batch_size=8, weights="score", **PLAIN), {}, "global_batch 4, given is 8"),
        (loader, {"batch_size": 4}, "leave batch_size out: the Loader has its own"),
    ):
        with pytest.raises(UsageError, match=text):
            picstore.audit(state, of, **options)
    old = {name: value for name, value in state.items() if name != "global_batch"}
    with pytest.raises(UsageError, match="did not note the batch size; give batch_size"):
        picstore.audit(old, roots[0], weights="score")
    mux = picstore.DataMux([(dataset, 0, 2), (other, 0, 3)], schedule=[(1, [4, 1])], **PLAIN)
    next(iter(mux))
    for sources, text in (
        (roots[:1], "the state is of a mux of"),
        (roots[::-1], "of the dataset"),
        (roots, "if it had a schedule, give its configuration, or in Python the DataMux"),
        (picstore.DataMux([(dataset, 0, 2), (other, 0, 3)], **PLAIN), r"counts \[4, 1\]"),
    ):
        with pytest.raises(UsageError, match=text):
            picstore.audit(mux.state_dict(), sources)
    mux.close()


def test_the_command_answers_from_a_checkpoint(roots: list[Path], tmp_path: Path) -> None:
    loader = picstore.Loader(roots[0], batch_size=4, **PLAIN)
    batches = [batch.ids.tolist() for batch in islice(loader, 3)]
    torch.save({"model": torch.nn.Linear(2, 2).state_dict(), "loader": loader.state_dict()}, tmp_path / "last.pt")

    def ask(*options: Any) -> Any:
        return json.loads(picstore_command("audit", tmp_path / "last.pt", roots[0], *options, "--json").stdout)

    told = ask()
    assert (told["steps"], told["rows"], told["datasets"][0]["unseen"]) == (3, [], 41 - 12)
    rows = ask("--steps", "1:3")["rows"]
    assert [row["id"] for row in rows] == [*batches[1], *batches[2]]
    assert rows[0] == {
        "step": 1, "epoch": 0, "rank": 0, "slot": 0, "dataset": str(roots[0]), "id": batches[1][0],
        "path": f"photos/{batches[1][0]}.jpg",
    }  # fmt: skip
    id_ = batches[2][1]
    found = ask("--path", f"photos/{id_}.jpg", "--id", 5, "--path", "no.jpg", "--id", 999)["rows"]
    assert [(row["id"], row["path"], row["status"], row["steps"]) for row in found] == [
        (5, "", "deleted before", []),
        (id_, f"photos/{id_}.jpg", "present", [2]),
        (999, "", "not in this dataset", []),
        (None, "no.jpg", "not in this dataset", []),
    ]
    assert [row["id"] for row in ask("--unseen")["rows"]] == picstore.audit(
        loader.state_dict(), loader
    ).unseen().tolist()
    assert sum(row["times"] for row in ask("--counts", "--steps", ":2")["rows"]) == 8
    told = ask("--steps", "0:3", "--csv", tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == [id_ for batch in batches for id_ in batch]
    assert (told["rows"], told["count"]) == ([], 12)
    assert "at steps 2" in picstore_command("audit", tmp_path / "last.pt", roots[0], "--id", id_).stdout
    for wrong in (["--steps", "2:9"], ["--steps", "x"], ["--counts", "--unseen"]):
        picstore_command("audit", tmp_path / "last.pt", roots[0], *wrong, code=2)
