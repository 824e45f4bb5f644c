"""Start of helper processes, each of which is a Python interpreter that runs one function of picstore.

``python -c`` and multiprocessing's fork server search the working directory first for modules, so that a file
``threading.py`` in a folder of images would run; before Python 3.11 no option prevents this. Helper processes run the
file ``helper_main.py`` instead, whose first statement sets the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Modules that numba imports if they are installed, for functions that picstore's kernels do not call, and for colors in
# messages. If a process cannot import them, importing numba takes it half the time.
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
    """Start a Python process that runs a function; garbage collection is off until the function turns it on.

    Args:
        main: function to run, as ``module:function``; the function has no parameters.
        arguments: strings that the function finds in ``sys.argv[1:]``.
        descriptors: file descriptors that the process inherits.
        last_words: descriptor of a file that takes the traceback of an uncaught exception, or the stacks of all threads
            after a crash; None for stderr.
        without: modules that the process cannot import until it calls :func:`allow_imports`.
        environment: environment variables to add to those of this process.
        options: options of ``subprocess.Popen``.
    """
    kept = [] if last_words is None else [last_words]
    told = ["\n".join(module_folders()), main, ",".join(without), "".join(map(str, kept))]
    # Pass on Python's options -E (ignore environment) and -s (no user site-packages) if this process has them.
    flags = [*["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, *flags, str(_MAIN), *told, *map(str, arguments)],
        pass_fds=[*descriptors, *kept],
        env={**os.environ, **(environment or {})},
        **options,
    )


def allow_imports(names: Sequence[str] = NUMBA_EXTRAS) -> None:
    """Allow this process to import modules again that the argument ``without`` of :func:`start_helper` excluded."""
    for name in names:
        if sys.modules.get(name) is None:
            sys.modules.pop(name, None)


def module_folders() -> list[str]:
    """Return the folders in which a started process must look for modules: this process's ``sys.path``, absolute.

    The working directory is included only if ``sys.path`` has it, as in notebooks and ``python -c``. It comes last,
    because its modules must not hide modules of Python or of packages.
    """
    here = [each for each in sys.path if each in ("", ".")]
    others = [os.path.abspath(each) for each in sys.path if isinstance(each, str) and each not in ("", ".")]  # noqa: PTH100
    return others + [str(Path.cwd()) for _ in here[:1]]
