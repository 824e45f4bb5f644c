"""First program of a helper process (see ``helper_process.py``): sets the path before any other module is imported.

Because Python runs this file, it puts the file's folder on the path rather than the working directory, in which a file
could hide a module of Python. Arguments: folders to search for modules, ``module:function`` to run, modules that must
not be imported, the descriptor of a file for a last traceback, and the arguments to leave in ``sys.argv``.
"""

import sys

sys.path[:] = sys.argv[1].split("\n")
_main, _without, _last_words = sys.argv[2:5]
del sys.argv[1:5]

import faulthandler  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402

# Turn off garbage collection, because it would take 25 ms of the 310 ms of the imports below, and free nothing.
gc.disable()
# Exclude the modules in ``_without``: importing a module raises ImportError if its entry in ``sys.modules`` is None.
sys.modules.update(dict.fromkeys(filter(None, _without.split(","))))  # type: ignore[arg-type]

if _last_words:
    last_words = open(int(_last_words), "w")  # noqa: SIM115, PTH123 - open until the process ends
    faulthandler.enable(last_words)

    def _write_last_words(*error):  # type: ignore[no-untyped-def]
        import traceback

        traceback.print_exception(*error, file=last_words)
        last_words.flush()  # Write the traceback to the file now, as the process may end without closing the file.

    sys.excepthook = _write_last_words

_module, _, _function = _main.partition(":")
getattr(importlib.import_module(_module), _function)()
