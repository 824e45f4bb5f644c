"""``picstore.audit``: which records a training run drew up to a saved state of its Loader, and at which steps."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from picstore.errors import PicstoreError, UsageError
from picstore.verbs.common_arguments import open_dataset, open_selection

if TYPE_CHECKING:
    import numpy.typing as npt

    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where
    from picstore.train.audited import Audit
    from picstore.train.loader import Loader
    from picstore.train.mux import DataMux


def audit(
    checkpoint: str | os.PathLike[str] | Mapping[str, Any],
    dataset: Where | Dataset | Loader | DataMux | Sequence[Where | Dataset],
    *,
    weights: str | npt.ArrayLike | None = None,
    balance: str | None = None,
    repeat: float = 1,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
    aug_repeats: int = 1,
    drop_last: bool | None = None,
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    root: Where | None = None,
) -> Audit:
    """Tell which images a training run had drawn by the time it saved a checkpoint, and at which steps.

    The answer is computed from the loader's state alone: the run need not have logged anything, and no image is read. A
    state names the version of its dataset, so images that were added or deleted later are recognized.

    Args:
        checkpoint: state of a Loader, a file that contains a state (JSON or another checkpoint), or a folder of such
            files.
        dataset: dataset of the training run; several datasets are joined. For a mux, its configuration or its datasets
            in order. In Python also an open dataset, a Loader or a DataMux.
        weights: column of weights by which the Loader drew records.
        balance: column of which the Loader drew each value equally often.
        repeat: number of samples in an epoch of the Loader, as a multiple of the number of records.
        batch_size: number of images in a rank's batch; None for the number in the state.
        global_batch_size: number of images in the batches of all ranks together; None for the number in the state.
        aug_repeats: number of images of each record in a batch of the Loader; the batch sizes are divided by this
            number.
        drop_last: whether the Loader left out the last samples of an epoch if they did not fill a batch; None for the
            value in the state, or yes if the state has none.
        where, split, part, split_seed, split_by: see :func:`picstore.shuffle`.
        root: see :func:`picstore.info`.

    Returns:
        Audit, whose methods return samples by step, counts by record, the steps of given ids, and records that were not
        drawn.

    Raises:
        UsageError: the file contains no state, or the state is of another dataset or another order, as the message
            says.
        NotADataset, Unfinished, UnsupportedVersion, Damage: a dataset cannot be opened.
    """
    options = {name: value for name, value in locals().items() if name in _OPTIONS or name == "root"}
    from picstore.train.saved_states import find_states, join_workers, read_states

    if isinstance(checkpoint, Mapping):
        found = find_states(dict(checkpoint))
        if not found:
            raise UsageError("there is no loader's state; give what state_dict() of a loader returned")
    else:
        found = read_states(checkpoint)
    states, remark = join_workers(found)
    audits = [(place, _try(state, dataset, options)) for place, state in states]
    fitting = [(place, each) for place, each in audits if not isinstance(each, UsageError)]
    if len(fitting) > 1:
        places = "; ".join(place for place, _ in fitting)
        raise UsageError(f"there are {len(fitting)} states of this dataset: in {places}; give one of them alone")
    for _, audited in fitting:
        return replace(audited, remarks=(*audited.remarks, *([remark] if remark else [])))
    raise cast("UsageError", audits[0][1])


_SELECTION: dict[str, Any] = {"where": None, "split": None, "part": None, "split_seed": 0, "split_by": None}
# Arguments of ``audit`` that repeat options of the training run's Loader, with their defaults.
_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("weights", "balance", "batch_size", "global_batch_size", "drop_last")),
    "repeat": 1,
    "aug_repeats": 1,
    **_SELECTION,
}


def _try(state: dict[str, Any], dataset: Any, options: dict[str, Any]) -> Audit | UsageError:
    try:
        return _audit(state, dataset, options)
    except UsageError as error:
        return error


def _audit(state: dict[str, Any], dataset: Any, options: dict[str, Any]) -> Audit:
    from picstore.train.audited import Audit
    from picstore.train.orders_of_states import order_of_loader, order_of_state

    # Look for Loader's module without importing it, which takes 1 s: unless it is loaded, ``dataset`` is not a Loader.
    core = sys.modules.get("picstore.train.core")
    if core is not None and isinstance(dataset, core.BatchLoader):
        _refuse(options, f"the {type(dataset).__name__} has its own")
        opened = [source.dataset for source in dataset.sources]
        order = order_of_loader(dataset.order, state)
        return Audit.of(order, opened, state, [_reopen(each) for each in opened])
    if "datasets" in state:
        _refuse(options, "the state is of a mux, whose configuration tells")
        return _audit_mux(state, dataset, options["root"])
    if "buckets" in state:
        raise UsageError(
            "the state is of a Loader with Buckets or Sequences; make that Loader in Python, and give it to "
            "picstore.audit in place of the dataset"
        )
    trained, latest = _open_trained(dataset, state.get("dataset"), options)
    return Audit.of(order_of_state(state, trained, options), [trained], state, [latest])


def _audit_mux(state: dict[str, Any], dataset: Any, root: Where | None) -> Audit:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.local import Folder
    from picstore.storage.location.resolve import checked_path
    from picstore.train.audited import Audit
    from picstore.train.orders_of_states import mux_of_state

    given = list(dataset) if isinstance(dataset, (list, tuple)) else [dataset]
    names, schedule, per_rank = state["datasets"], None, True
    entries: list[tuple[Any, str | None, Any]] = [(each, None, root) for each in given]
    if len(given) == 1 and not isinstance(given[0], Dataset) and Folder(checked_path(str(given[0]))).is_file():
        # Imported only for a mux's configuration, because this module imports torch.
        from picstore.train.mux_config import make_schedule, read_config

        config = read_config(given[0])
        entries = [(each.path, each.where, each.root) for each in config.entries]
        schedule, per_rank = make_schedule(config), not config.options.get("global_counts")
    if not isinstance(names, list) or len(names) != len(entries):
        raise UsageError(f"the state is of a mux of {names}; give these datasets in this order, or its configuration")
    pairs = [
        _open_trained(path, name, {**_SELECTION, "where": where, "root": of_index})
        for (path, where, of_index), name in zip(entries, names, strict=True)
    ]
    order = mux_of_state(state, [trained for trained, _ in pairs], schedule, per_rank=per_rank)
    return Audit.of(order, [trained for trained, _ in pairs], state, [latest for _, latest in pairs])


def _refuse(options: Mapping[str, Any], why: str) -> None:
    for name, default in _OPTIONS.items():
        if options[name] is not default and options[name] != default:
            raise UsageError(f"leave {name} out: {why}")


def _open_trained(given: Any, identity: Any, options: Mapping[str, Any]) -> tuple[Dataset, Dataset]:
    """Return a state's dataset, in the version and selection of the training, and the dataset's latest version.

    Raise UsageError, which names both datasets, if the given dataset or selection is not the state's.
    """
    from picstore.storage.dataset import Dataset

    uuid, _, selected = str(identity).partition(",")
    given = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
    selection = {name: options[name] for name in _SELECTION}
    if isinstance(given, (list, tuple)):
        latest = trained = open_selection(given, **_SELECTION, root=options["root"])
    else:
        latest = trained = open_dataset(given, options["root"])
        if isinstance(given, Dataset):
            latest = _reopen(given)
        elif latest.order_uuid != uuid:
            try:
                trained = Dataset(given, root=options["root"], version=uuid)
            except UsageError as error:
                text = f"the state is of the dataset {uuid}, {latest.path} is {latest.order_uuid}"
                raise UsageError(f"{text} and has no such earlier version; give the training's dataset") from error
    chosen = open_selection(trained, **selection)
    if chosen.identity != identity:
        text = f"the state is of the dataset {identity}, given is {chosen.identity}"
        hint = "where, or split and part, as the training had them" if selected else "the training's dataset"
        raise UsageError(f"{text}; give {hint}, or in Python the dataset itself")
    return chosen, latest


def _reopen(dataset: Dataset) -> Dataset:
    """Return the latest version of a dataset, or the dataset itself if it is joined or that version is unreadable."""
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Location

    if isinstance(dataset.path, Location):
        with contextlib.suppress(PicstoreError):
            return Dataset(dataset.path, root=cast("Any", dataset.references))
    return dataset
