"""``picstore.view``: show a web page of a dataset, or of two datasets side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from picstore.errors import UsageError, missing_extra
from picstore.verbs.common_arguments import open_other, open_selection, require_range

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where
    from picstore.viewer.server import Page


def view(
    dataset: Where | Dataset,
    other: Where | Dataset | None = None,
    *,
    port: int = 0,
    embed: bool = False,
    recipe: str | None = None,
    state: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    inputs: str | os.PathLike[str] | None = None,
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    root: Where | None = None,
    other_root: Where | None = None,
) -> Page:
    """Show a dataset, or two side by side, on a web page of this machine while the process runs.

    At the end of a notebook's cell, the result appears as the page if ``embed`` is set, else as a link to it.

    Args:
        dataset, other: paths, URLs or open datasets.
        port: port to listen on; 0 is any free port.
        embed: let pages of this machine, such as a notebook, show the page in a frame.
        recipe: recipe to show first: a TOML file with a list `transform`, or a name in picstore.recipes.
        state: checkpoint that holds ``loader.state_dict()``, of torch or in JSON, or that state itself; the page shows
            the last batch before the state.
        inputs: folder that the dataset was converted from, to show the pictures that failed.
        where, split, part, split_seed, split_by: see :func:`picstore.shuffle`.
        root: see :func:`picstore.info`.
        other_root: the same as ``root``, for ``other``.

    Returns:
        The page: its ``address``, which holds a secret, and ``close()``.

    Raises:
        UsageError: the port is taken, the recipe or state cannot be used, or the selection is impossible.
        NotADataset, Unfinished, UnsupportedVersion, Damage: a dataset cannot be opened.
        MissingDependency: Starlette and uvicorn are not installed.
    """
    page = open_page(**locals())
    page.start()
    return page


def open_page(
    dataset: Where | Dataset,
    other: Where | Dataset | None,
    *,
    port: int,
    embed: bool,
    recipe: str | None,
    state: str | os.PathLike[str] | Mapping[str, Any] | None,
    inputs: str | os.PathLike[str] | None,
    root: Where | None,
    other_root: Where | None,
    **selection: Any,
) -> Page:
    """Return the page of :func:`view` without starting its server; arguments and errors are those of :func:`view`."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise missing_extra("the page needs Starlette and uvicorn", "view")
    from picstore.storage.location.local import Folder
    from picstore.storage.location.resolve import checked_path
    from picstore.viewer.records import Records
    from picstore.viewer.server import Page
    from picstore.viewer.session import Session

    require_range("port", port, 0, 65_535)
    if recipe is not None:
        from picstore.viewer.drawn import Recipe

        # Raise the errors of a wrong recipe now, before the page is opened, rather than in the first request for it.
        Recipe.find(recipe)
    if isinstance(state, (str, os.PathLike)):
        from picstore.train.saved_states import read_states

        ((_, state), *_) = read_states(state)
    second = open_other(other, other_root)
    beside = None if second is None else Session(Records(second))
    shown = Records(open_selection(dataset, root=root, **selection))
    folder = None if inputs is None else checked_path(inputs)
    if folder is not None and not Folder(folder).is_folder():
        raise UsageError(f"inputs is {folder}, which is not a folder; give the folder that was converted")
    return Page(Session(shown, recipe, state, folder, beside), port=port, embed=embed)
