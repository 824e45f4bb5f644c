"""First program of a helper process (``helper_process.py``), which runs before any module is imported.

Python puts the folder of this file on the path, not the working directory, in which a file could hide a module of
Python. Arguments: folders of modules, ``module:function`` to run, modules not to import, the descriptor of the file for
last words, and the arguments that ``sys.argv`` then holds.
"""

import sys

sys.path[:] = sys.argv[1].split("\n")
_main, _without, _last_words = sys.argv[2:5]
del sys.argv[1:5]

import faulthandler  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402

# Off, because garbage collection while modules are imported frees nothing, and takes 25 of the 310 ms.
gc.disable()
# Importing a module whose entry in sys.modules is None raises ImportError.
sys.modules.update(dict.fromkeys(filter(None, _without.split(","))))  # type: ignore[arg-type]

if _last_words:
    last_words = open(int(_last_words), "w")  # noqa: SIM115, PTH123 - open until the process ends
    faulthandler.enable(last_words)

    def _write_last_words(*error):  # type: ignore[no-untyped-def]
        import traceback

        traceback.print_exception(*error, file=last_words)
        last_words.flush()  # The process may end without closing the file.

    sys.excepthook = _write_last_words

_module, _, _function = _main.partition(":")
getattr(importlib.import_module(_module), _function)()
