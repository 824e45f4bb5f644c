"""States of loaders are found in files of JSON and torch, at any depth, without running what the files hold."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from picstore.errors import UsageError
from picstore.train.saved_states import find_states, join_workers, read_states

STATE: dict[str, Any] = {
    "version": 2, "dataset": "d", "seed": 0, "shuffle": True, "lanes": 32, "world_size": 1, "epoch": 0, "samples": 8,
}  # fmt: skip
MUX: dict[str, Any] = {"version": 2, "datasets": ["d", "e"], "seed": 0, "lanes": 4, "world_size": 1, "taken": [1, 2]}


class Unknown:
    """A class that torch.load does not know."""


@pytest.mark.parametrize("legacy", [False, True])
def test_a_state_is_found_at_any_depth_of_a_checkpoint_of_torch(tmp_path: Path, legacy: bool) -> None:
    value = {"model": torch.nn.Linear(3, 3).state_dict(), "loops": [{"fit": ({"loader": STATE},)}], "mux": MUX}
    torch.save(value, tmp_path / "last.ckpt", _use_new_zipfile_serialization=not legacy)
    assert read_states(tmp_path / "last.ckpt") == [
        ("last.ckpt: mux", MUX),
        ("last.ckpt: loops, 0, fit, 0, loader", STATE),
    ]


def test_values_that_hold_themselves_end() -> None:
    value: dict[str, Any] = {"state": STATE}
    value["itself"] = [value]
    assert find_states(value) == [("state", STATE)]


def test_a_folder_tells_where_it_was_looked_for_a_state(tmp_path: Path) -> None:
    torch.save(Unknown(), tmp_path / "training_args.bin")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 5}')
    (tmp_path / "model.safetensors").write_bytes(b"\x80")
    with pytest.raises(
        UsageError, match=r"no loader's state in trainer_state\.json; training_args\.bin cannot be read"
    ):
        read_states(tmp_path)
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "loader.json").write_text(json.dumps([STATE]))
    assert read_states(tmp_path) == [("extra/loader.json: 0", STATE)]


def test_files_that_need_code_or_are_damaged_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    torch.save({"loader": STATE, "optimizer": Unknown()}, file)
    with pytest.raises(UsageError, match=r"last\.pt.*weights_only=True.*json\.dump"):
        read_states(file)
    torch.save({"loader": STATE, "weight": torch.ones(64)}, file)
    whole = file.read_bytes()
    damaged = [whole[:length] for length in range(0, len(whole), 97)]
    damaged += [whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :] for place in range(1, len(whole), 5)]
    for content in damaged:
        file.write_bytes(content)
        with contextlib.suppress(UsageError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert read_states(file)
    with pytest.raises(UsageError, match="none"):
        read_states(tmp_path / "none.json")


def test_the_least_advanced_of_a_dataloaders_workers_tells_the_position() -> None:
    workers = [(f"w{k}", {**STATE, "worker": [k, 3], "samples": samples}) for k, samples in enumerate((24, 16, 20))]
    assert join_workers(workers) == ([workers[1]], "")
    assert join_workers([*workers[:2], ("other", MUX)])[0] == [workers[1], ("other", MUX)]
    assert "some of 3 workers are missing" in join_workers(workers[:2])[1]
    twice = [("a", STATE), ("b", dict(STATE)), ("c", {**STATE, "samples": 16})]
    assert join_workers(twice) == ([twice[0], twice[2]], "")
