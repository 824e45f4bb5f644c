"""What a loader uses of Ray, in this process: actors whose calls run in turn, and which die when a test says so."""

from __future__ import annotations

import pickle
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """The root of Ray's errors."""


class RayTaskError(RayError):
    """An exception in a task."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(eq=False)
class Reference:
    """A result, once its call has run; it holds no object that a worker could change."""

    done: bool = False
    value: Any = None
    error: RayError | None = None


@dataclass(eq=False)
class Actor:
    """An actor, and its calls that have not run."""

    made: Any
    number: int
    calls: deque[tuple[str, tuple[Any, ...], list[Reference]]] = field(default_factory=deque)
    dead: bool = False

    def __getattr__(self, method: str) -> Any:
        def call(count: int, *arguments: Any) -> Any:
            references = [Reference() for _ in range(count)]
            self.calls.append((method, arguments, references))
            if self.dead:
                self.die()
            return references[0] if count == 1 else references

        def options(num_returns: int) -> Any:
            return SimpleNamespace(remote=lambda *arguments: call(num_returns, *arguments))

        return SimpleNamespace(remote=lambda *arguments: call(1, *arguments), options=options)

    def die(self) -> None:
        """End it: its calls end with an error."""
        self.dead = True
        while self.calls:
            for reference in self.calls.popleft()[2]:
                reference.done, reference.error = True, RayError("the actor died\nlong ago")

    def run(self) -> list[Reference]:
        """Run the oldest call; returns the results that lie in the store."""
        method, arguments, references = self.calls.popleft()
        given = [argument.value if isinstance(argument, Reference) else argument for argument in arguments]
        try:
            result = getattr(self.made, method)(*given)
        except Exception as error:
            values: list[Any] = [None] * len(references)
            for reference in references:
                reference.error = RayTaskError(error)
        else:
            values = [result] if len(references) == 1 else list(result)
        for reference, value in zip(references, values, strict=True):
            reference.value = value.copy() if hasattr(value, "nbytes") else value
            if hasattr(value, "nbytes"):
                reference.value.flags.writeable = False
            reference.done = True
        return [reference for reference in references if hasattr(reference.value, "nbytes")]


class InlineRay:
    """The module ``ray``; ``before_wait`` is called with this object whenever the trainer waits."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    cloudpickle = pickle

    def __init__(self, *, store: float = 1e9, before_wait: Callable[[InlineRay], None] = lambda _: None) -> None:
        self.store, self.before_wait = store, before_wait
        self.runs: Callable[[Actor], bool] = lambda _: True  # whether an actor comes to run a call now
        self.actors: list[Actor] = []
        self.options: list[dict[str, Any]] = []
        self.gone = False
        self.memory: list[Reference] = []  # of the batches that were given out
        self.blocks: weakref.WeakSet[Reference] = weakref.WeakSet()  # of batches that were made and not dropped

    @property
    def living(self) -> list[Actor]:
        """Actors that have not died."""
        return [actor for actor in self.actors if not actor.dead]

    def is_initialized(self) -> bool:
        """Whether this process is connected."""
        return not self.gone

    def cluster_resources(self) -> dict[str, float]:
        """A cluster of four cores."""
        return {"CPU": 4.0, "object_store_memory": self.store}

    available_resources = cluster_resources

    def put(self, value: Any) -> Reference:
        """Copy an object to the store."""
        return Reference(done=True, value=pickle.loads(pickle.dumps(value)))  # noqa: S301

    def remote(self, **options: Any) -> Callable[[type], Any]:
        """Make an actor's class."""
        self.options.append(options)

        def start(made: type) -> Actor:
            self.actors.append(Actor(made(), len(self.actors)))
            return self.actors[-1]

        return lambda made: SimpleNamespace(remote=lambda: start(made))

    def kill(self, actor: Actor) -> None:
        """End an actor at once."""
        actor.made.end()
        actor.die()

    def wait(
        self, references: list[Reference], *, num_returns: int, timeout: float, fetch_local: bool
    ) -> tuple[list[Reference], list[Reference]]:
        """Run a call of each actor, and list what is done."""
        self.before_wait(self)
        for actor in self.living:
            if actor.calls and self.runs(actor):
                self.blocks.update(actor.run())
        done = [reference for reference in references if reference.done][:num_returns]
        return done, [reference for reference in references if reference not in done]

    def get(self, reference: Reference) -> Any:
        """The result of a call that is done."""
        assert reference.done
        if reference.error is not None:
            raise reference.error
        if hasattr(reference.value, "nbytes"):
            self.memory.append(reference)
            del self.memory[:-2]
        return reference.value
