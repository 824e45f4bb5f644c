"""The layers of docs/design.md: a module imports only lower layers, and heavy libraries stay at their edge."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from picstore.errors import install_command

PACKAGE = Path(__file__).parents[1] / "picstore"
# Of each package its layers, the lowest first. Parts of one layer, separated by |, do not import each other.
LAYERS = {
    "picstore": [
        "_public | _version | errors | arrays | cores | helper_main | results",
        "helper_process",
        "rng",
        "kernels",
        "display | jpeg",
        "storage",
        "prepare",
        "train",
        "lightning | recipes | transforms",
        "viewer",
        "verbs",
        "cli",
    ],
    "picstore.storage": [
        "class_names | sizes | annotations | location",
        "format",
        "edits | manifest_fields",
        "manifest",
        "cache | record_counts | partial_reader | container_kernel",
        "conditions | joined_manifest | manifest_writer | references",
        "record_table | split_parts",
        "dataset_reader | record_pictures",
        "joined_reader",
        "dataset",
    ],
    "picstore.prepare": [
        "engine",
        "image | sources",
        "convert | exports",
        "dataset_writer | psnr_ssim | upkeep",
    ],
    "picstore.train": [
        "transforms | buffers",
        "order",
        "batching",
        "batch_pictures | loader_options | orders_of_states | saved_states",
        "audited",
        "batch | cpu",
        "cuda",
        "pipeline | single_batch",
        "core | map_batches | map_dataset",
        "loader | map_column",
        "mux_config | profile",
        "mux",
    ],
    "picstore.verbs": [
        "common_arguments | dataset_facts",
        "conversion",
        "audit | compare | convert | delete | dupes | export | index | info | map | measure_quality | merge | repair | "
        "shuffle | verify | view | warm",
    ],
    "picstore.viewer": [
        "background",
        "drawn | images | queries | security | text_search",
        "records | replay",
        "session",
        "comparison | grid | health | ledger_summary | training_routes",
        "details",
        "server",
    ],
}
# Libraries that take long to import, or are extras: the packages that may import them.
HEAVY = {
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "torch": {"train"},
    "torchvision": {"train"},
    "triton": {"train"},
    "simplejpeg": {"jpeg"},
    "wand": {"prepare"},
    "pyvips": {"prepare"},
    "pyarrow": {"prepare", "storage"},
    "duckdb": {"storage"},
    "resvg_py": {"prepare"},
    "OpenImageIO": {"prepare"},
    "h5py": {"prepare"},
    "lmdb": {"prepare"},
    "ray": {"prepare"},
    "lightning": {"lightning.py"},
    "matplotlib": {"display"},
    "rich": {"display", "kernels"},
    "click": {"cli"},
    "starlette": {"viewer"},
    "uvicorn": {"viewer"},
}


@functools.cache
def imports_of(path: Path) -> list[str]:
    """Full names of the modules that a file imports, wherever in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.append(node.module or "")
            if node.module == "picstore":
                names += [f"picstore.{alias.name}" for alias in node.names]
    return names


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


PATHS = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
MODULES = {module_of(path) for path in PATHS}


def layer_of(package: str, part: str) -> int:
    """Number of the layer that lists a part, 0 the lowest."""
    for number, layer in enumerate(LAYERS[package]):
        if part in layer.split(" | "):
            return number
    pytest.fail(f"{package}.{part} stands in no layer: add it to LAYERS")


def forbidden_imports(path: Path) -> Iterator[str]:
    """Imports of a module that no lower layer holds, each as a sentence."""
    mine = module_of(path).split(".")
    for name in imports_of(path):
        theirs = name.split(".")
        if name not in MODULES or theirs == ["picstore", "__init__"]:
            continue
        for package, layers in LAYERS.items():
            depth = len(package.split("."))
            both = ".".join(mine[:depth]) == ".".join(theirs[:depth]) == package
            if not both or mine[depth] == theirs[depth]:
                continue
            above, below = layer_of(package, mine[depth]), layer_of(package, theirs[depth])
            if below >= above:
                yield f"{'.'.join(mine)} must not import {name}: {layers[below]!r} is no lower layer"


# One test of all modules, as 400 tests took 4 s of a core.
def test_a_module_imports_only_lower_layers() -> None:
    assert [sentence for path in PATHS for sentence in forbidden_imports(path)] == []


def test_heavy_libraries_are_imported_at_their_edge() -> None:
    for path in PATHS:
        part = path.relative_to(PACKAGE).parts[0]
        for name in imports_of(path):
            library = name.split(".")[0]
            assert library not in HEAVY or part in HEAVY[library], f"{path} imports {name} of {HEAVY[library]}"


def test_modules_and_packages_import_each_other_in_no_circle() -> None:
    imports = {module_of(path): MODULES.intersection(imports_of(path)) for path in PATHS}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' → '.join(error.args[1])}")


def test_a_base_name_stands_once_in_the_package() -> None:
    counted = Counter(path.stem for path in PATHS)
    assert {name for name, count in counted.items() if count > 1 and name != "__main__"} == set()


def test_an_init_file_holds_a_docstring_only_so_that_modules_load_alone() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        statements = ast.parse(path.read_text()).body
        # The public names, the verbs, and the check for torch.
        if path.parent.name not in ("picstore", "cli", "train"):
            assert len(statements) == 1 and isinstance(statements[0], ast.Expr), path


def test_a_function_whose_parameters_have_no_types_is_a_kernel() -> None:
    """pyproject.toml has mypy accept such functions in the packages of kernels."""
    for path in PATHS:
        for node in ast.parse(path.read_text()).body:
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(each, ast.FunctionDef) and not each.decorator_list:
                    untyped = [arg.arg for arg in each.args.args if arg.annotation is None]
                    assert set(untyped) <= {"self", "cls"}, f"{path}: {each.name} has no types for {untyped}"


@pytest.mark.parametrize(
    "statement",
    [
        "import picstore",
        "from picstore.cli import program as p; [p.main([*v, '--help'], standalone_mode=False) for v in "
        "([], *([verb] for verb in p.list_commands(None)))]",
    ],
    ids=["import", "help"],
)
def test_importing_picstore_and_asking_for_help_load_nothing_heavy(statement: str) -> None:
    heavy = ("torch", "numba", "wand", "numpy", "PIL", "rich")
    code = f"import sys\n{statement}\nprint('loaded', [m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_without_torch_the_loader_says_what_to_install_and_the_rest_works() -> None:
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import picstore
picstore.Writer, picstore.Dataset
for name in ("Loader", "DataMux", "RandomResizedCrop"):
    try:
        getattr(picstore, name)
    except picstore.MissingDependency as error:
        print(error, error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"the loader needs PyTorch and torchvision: {install_command('torch')} 4\n" * 3


def test_public_names_are_those_of_the_contract() -> None:
    import picstore

    for name in picstore.__all__:
        assert getattr(picstore, name) is not None
    contract = {"Dataset", "Writer", "Loader", "DataMux", "RandomResizedCrop", "RandomHorizontalFlip"}
    assert contract <= set(picstore.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        picstore.no_such_name  # type: ignore[attr-defined]  # noqa: B018
