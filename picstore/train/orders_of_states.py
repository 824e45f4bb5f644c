"""Order of a training, rebuilt from a state of its loader and from what the state does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.order.bucket_order import BucketOrder
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.mux_order import MuxOrder, MuxSchedule
from picstore.train.order.state_checks import MAX_POSITION, read_lanes
from picstore.train.order.weights import record_shares
from picstore.train.transforms.arguments import checked_integer

AnyOrder: TypeAlias = DatasetOrder | BucketOrder | MuxOrder


def order_of_loader(order: AnyOrder, state: Mapping[str, Any]) -> AnyOrder:
    """Return ``order`` with a state's numbers of lanes and ranks; raise UsageError if the state's batches differ."""
    lanes, ranks = read_lanes(state), _ranks(state)
    if isinstance(order, DatasetOrder):
        shard = replace(order.shard, lanes=lanes, rank=0, world_size=ranks)
        _check_same(state, "global_batch", shard.batch)
        _check_same(state, "drop_last", shard.drop_last)
        return replace(order, shard=shard)
    return replace(order.with_lanes(lanes), rank=0, world_size=ranks)


def order_of_state(state: Mapping[str, Any], dataset: Dataset, options: Mapping[str, Any]) -> DatasetOrder:
    """Rebuild the order of a Loader from a state, the dataset, and options that the state may lack.

    Args:
        state: state of a Loader without buckets.
        options: ``batch_size``, ``global_batch_size``, ``aug_repeats``, ``drop_last``, ``weights``, ``balance`` and
            ``repeat``, as for :class:`picstore.Loader`. Any of the first four may be None, to use the state's value.

    Raises:
        UsageError: the state lacks a value that is needed, or its value differs from the given option.
    """
    ranks, batch = _ranks(state), _global_batch(state, options, _ranks(state))
    seed, drop_last = state.get("seed"), options["drop_last"]
    if drop_last is None:
        drop_last = state.get("drop_last", True)
    _check_same(state, "drop_last", drop_last)
    if type(seed) is not int or type(state.get("shuffle")) is not bool or type(drop_last) is not bool:
        text = f"the state has seed {seed!r}, shuffle {state.get('shuffle')!r} and drop_last {drop_last!r}"
        raise UsageError(f"{text}; give what state_dict() returned")
    weighted = {name: options[name] for name in ("weights", "balance", "repeat")}
    shares = record_shares(dataset, **weighted, seed=seed)
    if "weights" in state and shares is None:
        raise UsageError("the state is of a Loader with weights, balance or repeat; give the Loader's")
    shard = RankShard(
        records=len(dataset) if shares is None else shares.samples,
        batch=batch,
        lanes=read_lanes(state),
        world_size=ranks,
        drop_last=drop_last,
    )
    return DatasetOrder(shard, seed, dataset.identity, shares, shuffle=state["shuffle"])


def mux_of_state(
    state: Mapping[str, Any],
    datasets: Sequence[Dataset],
    schedule: MuxSchedule | None,
    *,
    per_rank: bool,
) -> MuxOrder:
    """Rebuild the order of a mux from a state and the mux's datasets.

    Args:
        schedule: number of samples of each dataset in a batch, by step; None to use the state's counts at all steps.
        per_rank: whether ``schedule`` counts the samples of a rank's batch rather than of a global batch.

    Raises:
        UsageError: the state lacks a value that is needed or contradicts the schedule, or a dataset is empty.
    """
    ranks, seed = _ranks(state), state.get("seed")
    counts, given = state.get("counts"), schedule is not None
    if type(seed) is not int or not isinstance(counts, list) or len(counts) != len(datasets):
        raise UsageError(f"the state has seed {seed!r} and counts {counts!r}; give what state_dict() returned")
    if empty := [str(dataset.path) for dataset in datasets if not len(dataset)]:
        raise UsageError(f"{empty[0]} has no records; it was not in this mux")
    if schedule is None:
        checked = [checked_integer(each, "counts of the state", 0, MAX_POSITION) for each in counts]
        schedule = MuxSchedule.constant(checked)
        per_rank = state.get("version") == 1
    order = MuxOrder(
        schedule=schedule.times(ranks if per_rank else 1),
        records=tuple(map(len, datasets)),
        lanes=read_lanes(state),
        seed=seed,
        world_size=ranks,
        uuids=tuple(dataset.identity for dataset in datasets),
    )
    try:
        order.position(state)
    except UsageError as error:
        if given:
            raise
        raise UsageError(f"{error}; if it had a schedule, give its configuration, or in Python the DataMux") from error
    return order


def _global_batch(state: Mapping[str, Any], options: Mapping[str, Any], ranks: int) -> int:
    """Return the number of samples in a global batch from the options or, if these have no batch size, from a state."""
    one, whole, repeats = (options[name] for name in ("batch_size", "global_batch_size", "aug_repeats"))
    if one is None and whole is None:
        if "global_batch" not in state:
            raise UsageError("the state is of a picstore that did not note the batch size; give batch_size")
        return checked_integer(state["global_batch"], "global_batch of the state", 1, MAX_POSITION)
    if one is not None and whole is not None:
        raise UsageError(f"batch_size is {one} and global_batch_size {whole}; give one of them")
    images = checked_integer(whole if one is None else one, "the batch size", 1, MAX_POSITION)
    images *= 1 if one is None else ranks
    if images % checked_integer(repeats, "aug_repeats", 1):
        raise UsageError(f"aug_repeats is {repeats}; give a number that divides the batch size")
    samples: int = images // repeats
    _check_same(state, "global_batch", samples)
    return samples


def _check_same(state: Mapping[str, Any], name: str, value: Any) -> None:
    if state.get(name, value) != value:
        raise UsageError(f"the state has {name} {state[name]!r}, given is {value!r}; give the training's")


def _ranks(state: Mapping[str, Any]) -> int:
    return checked_integer(state.get("world_size"), "world_size of the state", 1, 1 << 20)
