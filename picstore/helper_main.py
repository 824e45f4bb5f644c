"""The first program of a helper process, see ``helper_process.py``: it runs before any module is imported.

Python puts this file's folder on the path, and neither the working directory nor what a module of Python's own name in
it would run. Arguments: folders of modules, what to run as ``module:function``, modules not to import, the descriptor
of the file for last words, and the arguments that ``sys.argv`` then holds.
"""

import sys

sys.path[:] = sys.argv[1].split("\n")
_main, _without, _last_words = sys.argv[2:5]
del sys.argv[1:5]

import faulthandler  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402

gc.disable()  # collections while modules are imported find no garbage and take 25 of 310 ms
sys.modules.update(dict.fromkeys(filter(None, _without.split(","))))  # type: ignore[arg-type]  # None: not to be imported

if _last_words:
    last_words = open(int(_last_words), "w")  # noqa: SIM115, PTH123 - until the process ends
    faulthandler.enable(last_words)

    def _write_last_words(*error):  # type: ignore[no-untyped-def]
        import traceback

        traceback.print_exception(*error, file=last_words)
        last_words.flush()  # what the interpreter still holds at its end, it may not close

    sys.excepthook = _write_last_words

_module, _, _function = _main.partition(":")
getattr(importlib.import_module(_module), _function)()
