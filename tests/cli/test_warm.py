"""picstore warm: which kernels it compiles, and where they lie."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import picstore_command, picstore_json

from picstore import recipes
from picstore.errors import UsageError
from picstore.kernels import ahead, jit
from picstore.prepare.convert.kernel_warmup import encoder_kernels
from picstore.train.batching.spec import OutputSpec
from picstore.train.cpu.needed_kernels import needed_kernels
from picstore.train.transforms.color import Normalize
from picstore.train.transforms.crops import CenterCrop, RandomHorizontalFlip, RandomResizedCrop
from picstore.train.transforms.resizing import Resize
from picstore.train.transforms.transform_plan import plan_transforms
from picstore.verbs.warm import compile_on_first_use


def warm(*arguments: object) -> int:
    """Compile kernels; returns how many there are."""
    done = picstore_json("warm", *arguments)
    assert Path(done["folder"]).is_dir()
    assert done["seconds"] >= 0
    return int(done["compiled"] + done["cached"])


def test_warm_compiles_what_convert_and_the_standard_job_need_only_once() -> None:
    assert warm() == 20
    assert picstore_json("warm")["compiled"] == 0
    text = picstore_command("warm", "--processes", 1).stdout
    assert text.startswith("0 kernels compiled in 0.") and "20 were there" in text


@pytest.mark.slow
def test_warm_for_a_recipe_compiles_what_its_transforms_need() -> None:
    assert warm("--recipe", "open_clip") == 10  # nine of any training, and normalizing
    assert warm("--recipe", "simclr") > warm("--recipe", "open_clip")


@pytest.mark.slow
def test_the_cache_lies_where_numba_is_told(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('decoder = "cpu"\ntransform = [{ name = "CenterCrop", size = 32 }]\n')
    cache, compiled = tmp_path / "cache" / "picstore", picstore_json("warm", "--recipe", recipe)["folder"]
    shutil.copytree(compiled, cache, ignore=lambda _, names: [name for name in names if not name.endswith(".kernel")])
    for one in cache.glob("read_and_check-*.kernel"):  # all seven would take 15 s of CPU
        one.unlink()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache.parent)}
    done = picstore_command("warm", "--recipe", recipe, env=environment)
    first, last = done.stderr.splitlines()
    assert first == "picstore: compiling 1 kernel, once on this machine"
    assert re.fullmatch(r"picstore: compiled 1 kernel in \d+ s", last)
    assert re.match(f"1 kernels? compiled in .*, 6 were there; in {cache}", done.stdout)
    assert len([*cache.glob("read_and_check-*.kernel")]) == 1


@pytest.mark.parametrize("cached", [False, True])
def test_the_first_conversion_compiles_what_the_loader_will_need(monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(jit, "is_cached", lambda _: cached)
    monkeypatch.setattr(ahead, "compile_ahead", asked.extend)
    compile_on_first_use()
    if cached:
        assert asked == []
        return
    (evaluation,), _ = recipes.find_recipe("evaluation")
    for steps in ([RandomResizedCrop(8), RandomHorizontalFlip(), Normalize(0.5, 0.5)], evaluation):
        plans = [plan_transforms(steps)[0]]
        assert {*needed_kernels(plans, OutputSpec.from_plans(plans)), *encoder_kernels()} <= set(asked)


@pytest.mark.parametrize("verb", ["convert", "index"])
def test_a_refused_destination_compiles_nothing(make_dataset: Callable[..., Path], tmp_path: Path, verb: str) -> None:
    """On a machine without compiled kernels, on which a conversion would compile for ten seconds and more."""
    cache, photos = tmp_path / "cache", tmp_path / "photos"
    cache.mkdir()
    photos.mkdir()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = picstore_command(verb, photos, make_dataset(8), code=2, env=environment)
    assert "is already a dataset" in done.stderr and "compil" not in done.stderr
    assert not [*cache.rglob("*.kernel")]


def test_a_recipe_is_a_name_or_a_file_of_transforms(tmp_path: Path) -> None:
    (evaluation,), _ = recipes.find_recipe("evaluation")
    assert isinstance(evaluation, list) and len(evaluation) == 3
    file = tmp_path / "recipe.toml"
    file.write_text(
        'dtype = "float16"\n'
        'transform = [{ name = "Resize", size = 40 }]\n'
        "[[source]]\n"
        'path = "cats"\ncount = 2\ntransform = [{ name = "CenterCrop", size = 32 }]\n'
        "[[source]]\n"
        'path = "dogs"\ncount = 1\n'
    )
    lists, options = recipes.find_recipe(str(file))
    assert [type(steps[0]) for steps in lists if isinstance(steps, list)] == [CenterCrop, Resize]
    assert str(options["dtype"]) == "torch.float16"


@pytest.mark.parametrize("given", ["no_such_recipe", "missing.toml", "find_recipe"])
def test_a_recipe_that_there_is_not_is_wrong_usage(given: str) -> None:
    with pytest.raises(UsageError, match=given):
        recipes.find_recipe(given)
    assert picstore_command("warm", "--recipe", given, code=2).stdout == ""


def test_every_public_recipe_has_its_name() -> None:
    functions = {name for name, each in vars(recipes).items() if getattr(each, "__module__", "") == recipes.__name__}
    assert set(recipes.NAMED) == functions - {"find_recipe"}
