"""The parts of ``bench_gpu.py``: what each measures is a list of cases, see ``case.py``."""
