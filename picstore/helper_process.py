"""The start of a helper process: a Python that runs a function of picstore's, the only way in which one is started.

``python -c`` and multiprocessing's fork server look for modules in the working directory first, and no option before
Python 3.11 forbids it: a ``threading.py`` in a folder of images would run. Helpers run a file instead
(``helper_main.py``), whose first statement sets the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What numba imports, where it is installed, for functions that no kernel calls, and for colors in its errors: half of
# its time to be imported.
NUMBA_EXTRAS = ("scipy", "cffi", "yaml", "colorama")
_MAIN = Path(__file__).with_name("helper_main.py")


def start_helper(
    main: str,
    *arguments: object,
    descriptors: Sequence[int] = (),
    last_words: int | None = None,
    without: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a Python that runs a function; its garbage collection is off until the function switches it on.

    Args:
        main: ``module:function``, without parameters.
        arguments: what the function finds in ``sys.argv[1:]``.
        descriptors: file descriptors that the process inherits.
        last_words: descriptor of a file for the traceback of an error that ends the process, or for the stacks at a
            crash; they go to stderr otherwise.
        without: modules that the process does not import, or only after they are removed from ``sys.modules``.
        environment: variables to add to this process's.
        options: of ``subprocess.Popen``.
    """
    kept = [] if last_words is None else [last_words]
    told = ["\n".join(module_folders()), main, ",".join(without), "".join(map(str, kept))]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, *_flags(), str(_MAIN), *told, *map(str, arguments)],
        pass_fds=[*descriptors, *kept],
        env={**os.environ, **(environment or {})},
        **options,
    )


def _flags() -> list[str]:
    """Options of this interpreter that say what the environment and the user's site-packages mean to it."""
    return [*["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]


def module_folders() -> list[str]:
    """Folders in which helpers look for modules: this process's, by absolute paths.

    The working directory comes last, and only where this process looks into it, as notebooks and ``python -c`` do:
    functions of the user's may lie there, and nothing there comes before Python's, picstore's and other packages.
    """
    here = [each for each in sys.path if each in ("", ".")]
    others = [os.path.abspath(each) for each in sys.path if isinstance(each, str) and each not in ("", ".")]  # noqa: PTH100
    return others + [str(Path.cwd()) for _ in here[:1]]
