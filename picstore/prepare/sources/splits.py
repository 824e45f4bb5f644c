"""Splits of a source: which names of folders, shards and groups name splits, and which of several splits to read.

A source with several splits is not read until ``--split`` chooses one split. Words for splits are those of the Hugging
Face hub. ``val`` also chooses ``validation``, and the year of ``train2017`` or the number of ``test01`` is ignored.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NoReturn, TypeVar

from picstore.errors import UsageError

ALL = "all"  # value of --split that takes all splits together

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(rf"({'|'.join(_WORDS)})\d*")
_TOKENS = re.compile(r"[^a-z0-9]+")
_NUMBERED = re.compile(r"(.*?)[-_.]?\d+-of-\d+")

T = TypeVar("T")


@functools.lru_cache(1 << 12)
def split_of_word(word: str) -> str | None:
    """Return the split for which a word such as ``train2017`` or ``val.txt`` stands; None if it names no split."""
    match = _WORD.fullmatch(word.lower().partition(".")[0])
    return match and match[1]


def split_of_name(name: str) -> str | None:
    """Return the split that a word of a name states, as in ``mnist-train.tfrecord``; None if no word does.

    Words consist of letters and digits. Of several words that state a split, the last one in the first path component
    with such a word decides.
    """
    for part in name.split("/"):
        for token in reversed(_TOKENS.split(part.lower())):
            if match := _WORD.fullmatch(token):
                return match[1]
    return None


def without_split(name: str) -> str:
    """Return a name without the words that stand for splits: ``y`` for ``y_train``."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name) if not _WORD.fullmatch(word.lower())]
    return "_".join(words) or name


def choose_split(items: Sequence[T], name: Callable[[T], str], split: str | None, where: object) -> list[T]:
    """Return the items, such as shards, of ``split``; all items if ``split`` is None or ``ALL``.

    Raise UsageError, which names ``where``, if no item belongs to ``split``, or if ``split`` is None and items belong
    to several splits.
    """
    names = [name(item) for item in items]
    found = [split_of_name(each) for each in names]
    # If some names contain a usual word for a split, other numbered names are taken to name splits too, such as
    # ``extra`` in ``extra-00000-of-00004``.
    if any(found):
        numbered = [_NUMBERED.match(each.rpartition("/")[2].lower()) for each in names]
        others = [match and match[1].partition(".")[0] for match in numbered]
        found = [each or other for each, other in zip(found, others, strict=True)]
    splits = list(dict.fromkeys(each for each in found if each))
    if split is None and len(splits) > 1:
        refuse(splits, where)
    if split in (None, ALL):
        return list(items)
    chosen = require_split(split, splits, where)
    return [item for item, each in zip(items, found, strict=True) if each == chosen]


def match_split(split: str, names: Iterable[str]) -> str | None:
    """Return the name equal to ``split``, else the only name of this split (``validation`` for ``val``), else None."""
    there = list(names)
    if split in there:
        return split
    wanted = _WORDS.get(split_of_word(split) or "", split.lower())
    same = [name for name in there if _WORDS.get(split_of_word(name) or "", name.lower()) == wanted]
    return same[0] if len(same) == 1 else None


def require_split(split: str, names: Collection[str], where: object) -> str:
    """Return the name that ``split`` means, as :func:`match_split` does; raise UsageError if no name matches."""
    chosen = match_split(split, names)
    if chosen is None:
        raise no_split(split, names, where)
    return chosen


def no_split(split: str, splits: Collection[str], where: object) -> UsageError:
    """Return the UsageError for a source that does not have the split that the user named."""
    return UsageError(f"{where} has no split {split!r}; it has {', '.join(splits) or 'none, so leave out --split'}")


def refuse_splits(names: Collection[str], where: object, option: str = "--classes") -> None:
    """Raise UsageError if there are several classes, all named like splits; the message names ``option`` as remedy."""
    if len(names) > 1 and all(map(split_of_word, names)):
        refuse(names, where, f"; if they are classes, name them in a file for {option}")


def refuse(splits: Collection[str], where: object, remedy: str = f", or --split {ALL} for all of them") -> NoReturn:
    """Raise UsageError with the message that a source holds several splits."""
    raise UsageError(f"{where} holds the splits {', '.join(splits)}; give --split with one of them{remedy}")
