"""ReadAhead: read inputs in order, with several requests to object stores in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from picstore.prepare.sources.inputs import Input, is_remote, read_input

_MAX_BYTES = 32 << 20  # of objects in flight or not read yet
_MAX_REQUESTS = 16
_ASSUMED_BYTES = _MAX_BYTES // _MAX_REQUESTS  # for an object whose size no listing told


class ReadAhead:
    """Reader of inputs in order; fetches inputs from an object store before they are asked for, several at a time.

    A request takes about 20 ms at any store, as long as a worker needs for several images. Inputs with a reader are
    read when asked for, since the reader may depend on sequential access. Each of ``inputs`` is read before its
    attachments; some may be skipped.
    """

    def __init__(self, inputs: Iterable[Input]) -> None:
        each = (one for source in inputs for one in (source, *(attached for _, attached in source.attachments)))
        self._coming = (one for one in each if is_fetchable(one))
        self._threads = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="picstore-ahead")
        self._requests: deque[tuple[Input, Future[bytes]]] = deque()
        self._bytes = 0

    def read(self, source: Input) -> bytes:
        """Read an input; raises as :func:`read_input` does."""
        while is_fetchable(source) and self._submit_requests():
            first, future = self._requests.popleft()
            self._bytes -= _expected_bytes(first)
            if first is source:
                return future.result()
            future.cancel()  # a skipped input
        return read_input(source)

    def _submit_requests(self) -> bool:
        """Fill up the requests in flight; returns whether there are any."""
        while self._bytes < _MAX_BYTES and (following := next(self._coming, None)) is not None:
            self._requests.append((following, self._threads.submit(read_input, following)))
            self._bytes += _expected_bytes(following)
        return bool(self._requests)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def is_fetchable(source: Input) -> bool:
    """Whether reading an input is one request to a store, independent of all others."""
    return not source.problem and source.reader is None and is_remote(source.path)


def _expected_bytes(source: Input) -> int:
    return source.size if source.size >= 0 else _ASSUMED_BYTES
