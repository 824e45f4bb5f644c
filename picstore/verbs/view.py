"""``picstore.view``: the web page of a data set, or of two beside each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from picstore.errors import missing_extra
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Where
from picstore.verbs.common_arguments import open_selection

if TYPE_CHECKING:
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
    """Show a data set, or two beside each other, on a web page of this machine while the process runs.

    Args:
        dataset, other: paths, URLs or open data sets.
        port: to listen on; 0 for any free one.
        embed: let pages of this machine show the page in a frame, so that the result at the end of a notebook's cell
            is the page; without it a link.
        recipe: to show first: a TOML file with a list ``transform``, or a name in ``picstore.recipes``.
        state: ``loader.state_dict()``, or a checkpoint in JSON that holds it: the batch before it is drawn.
        inputs: folder that ``dataset`` was converted from, to show the pictures that failed.
        where, split, part, split_seed, split_by: the images of ``dataset`` to show, as :func:`picstore.shuffle` has
            them.
        root, other_root: folders of the images of an index, which you trust.

    Returns:
        The page: its ``address``, which holds a secret, and ``close()``.

    Raises:
        UsageError: the port is taken, the recipe or state cannot be used, or the selection is impossible.
        NotADataset, Unfinished, UnsupportedVersion, Damage: a data set cannot be opened.
        MissingDependency: Starlette and uvicorn are not installed.
    """
    selection = {"where": where, "split": split, "part": part, "split_seed": split_seed, "split_by": split_by}
    opened = open_page(
        dataset,
        other,
        port=port,
        embed=embed,
        recipe=recipe,
        state=state,
        inputs=inputs,
        selection=selection,
        roots=(root, other_root),
    )
    opened.start()
    return opened


def open_page(
    dataset: Where | Dataset,
    other: Where | Dataset | None,
    *,
    port: int,
    embed: bool,
    recipe: str | None,
    state: str | os.PathLike[str] | Mapping[str, Any] | None,
    inputs: str | os.PathLike[str] | None,
    selection: Mapping[str, Any],
    roots: tuple[Where | None, Where | None],
) -> Page:
    """Make the page, which answers once it is started; arguments and errors: see :func:`view`."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise missing_extra("the page needs Starlette and uvicorn", "view")
    from picstore.viewer.records import Records
    from picstore.viewer.server import Page
    from picstore.viewer.session import Session

    if recipe is not None:
        from picstore.viewer.drawn import Recipe

        Recipe.find(recipe)  # what cannot be used is refused here, not on the page
    if isinstance(state, (str, os.PathLike)):
        from picstore.viewer.replay import read_state

        state = read_state(Path(state))
    beside = None
    if other is not None:
        beside = Session(Records(other if isinstance(other, Dataset) else Dataset(other, root=roots[1])))
    shown = Records(open_selection(dataset, root=roots[0], **selection))
    folder = None if inputs is None else Path(inputs)
    return Page(Session(shown, recipe, state, folder, beside), port=port, embed=embed)
