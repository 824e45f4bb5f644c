"""Answers to requests about training: recipes and replay. Modules with torch are imported only when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from picstore.errors import UsageError
from picstore.viewer.images import Picture, encode_pixels, load_kernels
from picstore.viewer.queries import Query
from picstore.viewer.session import Session

if TYPE_CHECKING:
    from picstore.viewer.drawn import Drawn
    from picstore.viewer.replay import Replay

Answer = Callable[[Session, Query], Any]


def answer_recipes(session: Session, _: Query) -> dict[str, Any]:
    """Return the recipes to choose from, the one to show first, the options in --recipe's file, and --state's state."""
    from picstore.viewer.drawn import DEFAULT_RECIPE, Recipe, offered_recipes

    options = Recipe.find(session.recipe).options if session.recipe is not None else {}
    given = {name: value for name, value in options.items() if isinstance(value, (int, float, str))}
    chosen = session.recipe or DEFAULT_RECIPE
    return {"recipes": offered_recipes(session.recipe), "default": chosen, "options": given, "state": session.state}


def answer_position(session: Session, query: Query) -> dict[str, int]:
    """Return the epoch and step of the last batch that a Loader had delivered when its state was saved."""
    from picstore.train.saved_states import find_state
    from picstore.viewer.replay import Run

    epoch, step = _replay(session).position(Run.from_query(query), find_state(query.json("state")))
    return {"epoch": epoch, "step": step}


def answer_steps(session: Session, query: Query) -> list[dict[str, Any]]:
    """Return, for each of several epochs, the steps at which a training run draws the requested image."""
    from picstore.viewer.replay import Run

    position = session.position(query)
    epochs = query.integer("epochs", 10, least=1, most=1000)
    return _replay(session).steps_of(Run.from_query(query), position, first=query.integer("epoch", 0), epochs=epochs)


def _replay(session: Session) -> Replay:
    from picstore.viewer.replay import Replay

    return session.once("replay", lambda: Replay(session.dataset))


def _draw_recipe(session: Session, query: Query) -> Drawn:
    from picstore.viewer.drawn import MAX_DRAWS, draw_epochs

    position = session.position(query)
    name, seed, first = query.text("recipe"), query.integer("seed", 0), query.integer("epoch", 0)
    count = query.integer("count", 16, least=1, most=MAX_DRAWS)

    def make() -> Drawn:
        load_kernels()
        epochs = range(first, first + count)
        return draw_epochs(session.dataset, _find_recipe(session, name), position, seed=seed, epochs=epochs)

    return session.kept.get(("recipe", name, position, seed, first, count), make)


def _find_recipe(session: Session, name: str) -> Any:
    """Return the recipe called ``name``; raise UsageError unless it is picstore's or the one given by ``--recipe``."""
    from picstore.viewer.drawn import Recipe, offered_recipes

    names = [each["name"] for each in offered_recipes(session.recipe)]
    if name not in names:
        raise UsageError(f"no recipe {name!r}; possible are {', '.join(names)}")
    return Recipe.find(name)


def _draw_batch(session: Session, query: Query) -> Drawn:
    from picstore.viewer.replay import Run

    run = Run.from_query(query)
    _find_recipe(session, run.recipe)
    epoch, step, first = query.integer("epoch", 0), query.integer("step", 0), query.integer("first", 0)

    def make() -> Drawn:
        load_kernels()
        return _replay(session).draw(run, epoch, step, first=first)

    return session.kept.get((run, epoch, step, first), make)


def _told(drawn: Drawn) -> dict[str, Any]:
    return {"images": drawn.images, **drawn.facts}


def _picture(drawn: Drawn, query: Query) -> Picture:
    return encode_pixels(drawn.pixels[query.integer("image", most=len(drawn.pixels) - 1)])


JSON_ANSWERS: Mapping[str, Answer] = {
    "/api/recipes": answer_recipes,
    "/api/draws": lambda session, query: _told(_draw_recipe(session, query)),
    "/api/replay": lambda session, query: _told(_draw_batch(session, query)),
    "/api/replay/position": answer_position,
    "/api/replay/steps": answer_steps,
}
PICTURE_ANSWERS: Mapping[str, Callable[[Session, Query], Picture]] = {
    "/drawn": lambda session, query: _picture(_draw_recipe(session, query), query),
    "/replayed": lambda session, query: _picture(_draw_batch(session, query), query),
}
