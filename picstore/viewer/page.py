"""The page as Python has it: its address, its end, and what a notebook shows of it."""

from __future__ import annotations

import html

from picstore.viewer.security import new_token
from picstore.viewer.server import Server, bind
from picstore.viewer.session import Session

_HEIGHT = 800  # pixels of a frame


class Page:
    """The web page of a data set; a context manager, which closes it at the end.

    Attributes:
        shown: path or URL, and number of images, of each data set.
        address: below which all of the page lies; whoever knows it sees the data set.
    """

    def __init__(self, session: Session, *, port: int, embed: bool) -> None:
        token = new_token()
        listening = bind(port)
        datasets = [each.dataset for each in (session, session.other) if each is not None]
        self.shown = [(str(dataset.path), len(dataset)) for dataset in datasets]
        self._title = " and ".join(name for name, _ in self.shown)
        self._embed = embed
        self._server = Server(session, listening, token=token, embed=embed)
        # A notebook's address mostly has this name, and browsers keep less from a frame of the same site.
        host = "localhost" if embed else "127.0.0.1"
        self.address = f"http://{host}:{listening.getsockname()[1]}/{token}/"

    def start(self) -> None:
        """Begin to answer, in a thread."""
        self._server.start()

    def serve(self) -> int:
        """Answer until SIGINT or SIGTERM; see :meth:`Server.serve`."""
        return self._server.serve()

    def close(self) -> None:
        """Stop answering."""
        self._server.close()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Page({self._title} at {self.address})"

    def _repr_html_(self) -> str:
        title = html.escape(self._title)
        if not self._embed:
            return f'<a href="{self.address}" target="_blank" rel="noopener">{title}</a>'
        return (
            f'<iframe src="{self.address}" title="{title}" width="100%" height="{_HEIGHT}" '
            'style="border: 1px solid #8886; border-radius: 6px" allow=""></iframe>'
        )
