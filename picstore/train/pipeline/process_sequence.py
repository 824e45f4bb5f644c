"""The sequence of batches that n loader processes make: each process makes every n-th span of the sequence.

    trainer                 process 0              process 1              process 2
    takes span 0 ←───────── span 0, in turn        span 1, ahead          span 2, ahead
    takes span 1            span 3, ahead    ←──── span 1, in turn        span 2, ahead
    takes span 2            span 3, ahead          span 4, ahead    ←──── span 2, in turn

All processes cut the sequence alike (``order/spans.py``), so each knows its spans. A process may have (n - 1) / n of a
span's batches on their way, the part that it makes while the other processes' spans are taken, or less if these batches
take more bytes than a span reads. Each request of the trainer receives the messages of all processes, because a process
that waits for the trainer to empty its socket would make nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from multiprocessing.connection import wait
from typing import TypeAlias

from picstore.errors import PicstoreError
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.spec import PipelineSpec
from picstore.train.order.spans import MAX_READ, DealtSpans, Span, steps_of_span
from picstore.train.pipeline.loader_process import AHEAD, LoaderProcess, SequenceShare

# Maximum number of batches sent and not yet taken; each is a memory mapping, of which Linux allows 65,530.
_MOST_AHEAD = 1 << 15

_Answer: TypeAlias = HostBatch | Exception | None  # a process's batch, the error that ended it, or None at the end


class ProcessSequence:
    """Endless sequence of batches, in order, made by loader processes from the first ``receive`` on.

    Args:
        processes: one or more processes, none of which is making batches.
        spec: specification of each process's pipeline; its budget of memory is for one process.
        owned: whether ``close`` ends the processes.
    """

    def __init__(
        self, processes: Sequence[LoaderProcess], span: Span, spec: PipelineSpec, *, owned: bool = False
    ) -> None:
        self._processes, self._span, self._spec, self._owned = processes, span, spec, owned
        self._received: list[deque[_Answer]] = [deque() for _ in processes]
        self._numbers: list[int] = []  # For each process, the number by which it identifies this sequence.
        self._turn = 0  # index of the current process, which makes the next batch
        self._left: int | None = None  # number of batches left in the current process's span; None without an end
        self._pid = os.getpid()

    def receive(self) -> HostBatch | None:
        """Return the next batch, or None at the end; raise a failed process's error when its next batch is due."""
        if self._pid != os.getpid():
            raise CancelledError
        if not self._numbers:
            self._begin()
        received = self._received[self._turn]
        while len(self._processes) > 1 and self._receive_ready(0):
            pass
        while not received:
            self._receive_ready(None)
        answer = received.popleft()
        if isinstance(answer, Exception):
            try:
                raise answer
            finally:
                del answer  # Break the reference cycle of error, traceback and frame.
        if answer is not None:
            self._processes[self._turn].take()
            self._advance()
        return answer

    def close(self) -> None:
        """End the sequence in all processes, and end the processes too if they are ``owned``."""
        for received in self._received:
            received.clear()
        # Not ``strict``: if ``_begin`` failed, some processes have not begun the sequence and have no number.
        for process, number in zip(self._processes, self._numbers, strict=False):
            process.end_sequence(number)
        if self._owned:
            for process in self._processes:
                process.close()

    def _begin(self) -> None:
        count = len(self._processes)
        steps = steps_of_span(self._span, self._spec.sources)[0] if count > 1 else 1
        spans = DealtSpans(self._span, steps, count)
        self._spans = iter(spans)
        self._left = next(self._spans).count
        ahead = max(AHEAD, min(-(-steps * (count - 1) // count), _MOST_AHEAD // count))
        room = int(self._spec.resources.budget / (MAX_READ - 1))
        try:
            for number, process in enumerate(self._processes):
                self._numbers.append(process.start_sequence(SequenceShare(spans, number, ahead, room)))
        except BaseException:  # End the processes, because a socket may hold an incomplete message.
            for process in self._processes:
                process.close()
            raise

    def _receive_ready(self, seconds: float | None) -> bool:
        """Receive one message of each process that has sent any, waiting up to ``seconds``; return whether any came."""
        running = {process.connection: number for number, process in enumerate(self._processes) if process.running}
        if not self._processes[self._turn].running and not self._received[self._turn]:
            raise CancelledError  # Another thread has closed the process.
        ready = wait(list(running), seconds)
        for connection in ready:
            number = running[connection]  # type: ignore[index]
            try:
                self._received[number].append(self._processes[number].receive())
            except (PicstoreError, OSError) as error:
                self._received[number].append(error)
        return bool(ready)

    def _advance(self) -> None:
        if self._left is not None:
            self._left -= 1
        if self._left == 0:
            self._turn = (self._turn + 1) % len(self._processes)
            self._left = next(self._spans).count
