"""``picstore.warm``: compile kernels before their first use."""

from __future__ import annotations

from typing import Any

from picstore.errors import MissingDependency, PicstoreError
from picstore.results import WarmResult
from picstore.verbs.common_arguments import require_range


def warm(recipe: str | None = None, *, processes: int | None = None) -> WarmResult:
    """Compile kernels now, once per machine, instead of at their first use.

    Compiled kernels are kept in NUMBA_CACHE_DIR if it is set, else beside the package, or in the user's cache folder if
    the package's folder cannot be written.

    Args:
        recipe: compile what training by a recipe needs: a TOML file with a list `transform`, such as the configuration
            of a mux, or a name in picstore.recipes. None for what convert, crops, flips, color
            changes and normalization need.
        processes: number of processes that compile; None for the number of cores.

    Raises:
        UsageError: there is no such recipe, or it cannot be used.
        MissingDependency: a recipe needs torch, which is not installed.
        PicstoreError: no folder for compiled kernels can be written.
    """
    from picstore.kernels.ahead import compile_ahead
    from picstore.kernels.kernel_cache import cache_folders

    require_range("processes", processes, 1)
    kernels = _kernels_of_convert() if recipe is None else []
    try:
        kernels += _kernels_of_training(recipe)
    except MissingDependency:
        if recipe is not None:
            raise
    folder = cache_folders()[0]
    if folder is None:
        raise PicstoreError("no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one")
    done = compile_ahead(kernels, processes=processes)
    return WarmResult(compiled=done.compiled, cached=done.cached, seconds=done.seconds, folder=str(folder))


def _kernels_of_convert() -> list[Any]:
    from picstore.prepare.convert.kernel_warmup import encoder_kernels, pixel_kernels

    return encoder_kernels() + pixel_kernels()


def compile_on_first_use() -> None:
    """Compile the kernels for converting and training at a machine's first conversion, if torch is installed.

    A conversion is taken for the first if a kernel that every conversion needs is not cached. Its fork server calls
    this before all else, so that the kernels that the Loader will need are compiled in the same run, in parallel.
    """
    import importlib.util

    from picstore.kernels.ahead import compile_ahead
    from picstore.kernels.jit import is_cached
    from picstore.prepare.convert.kernel_warmup import encoder_kernels

    if importlib.util.find_spec("torch") is not None and not all(map(is_cached, encoder_kernels())):
        # Import this module only if torch is installed, without which importing any part of picstore.train fails.
        from picstore.train.cpu.needed_kernels import standard_kernels

        compile_ahead(_kernels_of_convert() + standard_kernels())


def _kernels_of_training(recipe: str | None) -> list[Any]:
    from picstore.train.cpu.needed_kernels import needed_kernels, standard_kernels

    if recipe is None:
        return standard_kernels()
    from picstore.recipes import find_recipe
    from picstore.train.core import make_output
    from picstore.train.transforms.transform_plan import plan_transforms

    lists, given = find_recipe(recipe)
    plans = [plan_transforms(each, targets=tuple(given.get("targets", ())))[0] for each in lists]
    return needed_kernels(plans, make_output(plans, given.get("dtype"), given.get("memory_format")))
