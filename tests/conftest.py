"""Shared fixtures, and the set-up of a test session: compiled kernels, fork server, environment."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from traceback import extract_tb
from typing import Any

import pytest
from grids import load_profile
from pictures import missing, missing_packages, require
from samples import jpeg, picture
from stores import GoogleProxy, Proxy, azure_server, install_azurite, request, s3_server
from unsynced import leave_unsynced
from web_server import TOKEN, Hub, WebServer

import picstore
from picstore.errors import MissingDependency
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.engine import worker_processes
from picstore.storage.location import obstore_file
from picstore.storage.location.resumed_download import Retries

# A shell that starts the tests in the background makes them, and their child processes, ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without .pyc files each process that a test starts compiles all of picstore's source: 0.5 s of a core.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Last, so that it stands in only where the package is missing.
sys.path.append(str(Path(__file__).parent / "stand_ins"))

# Tests run side by side: threads of torch that wait for work by spinning take half of the time of other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without a GPU, GPU kernels run in Triton's interpreter. Triton reads this when torch imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

leave_unsynced()
_PRELOADED = (
    "unsynced:leave_unsynced",
    "picstore.prepare.convert.rows",
    "picstore.prepare.convert.kernel_warmup:load_encoder",
    "picstore.prepare.convert.kernel_warmup:load_pixels",
)
_LONG = {
    "test_compiling.py",
    "test_docs_site.py",
    "test_examples.py",
    "test_fuzz.py",
    "test_ray.py",
    "test_remote_cluster.py",
}
_MANY = 100  # tests of a run that cannot be about one missing package only
_PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "images"


def pytest_configure(config: pytest.Config) -> None:
    """Choose how much is tried; compile kernels once, as otherwise each of parallel test processes would."""
    load_profile(config.option.markexpr)
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        return
    recipe = ["--recipe", "timm_default"] if importlib.util.find_spec("torch") else []
    subprocess.run([sys.executable, "-m", "picstore", "warm", *recipe], check=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave nightly tests out where slow ones are left out, and begin with modules of long tests.

    Of the processes of pytest-xdist the first has these then, and no other waits at the end for one of them; nor do
    Ray's clusters, torchrun and compilers run beside one another.
    """
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name not in _LONG)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skips all of many tests: a fixture of all tests once needed PyTorch, and nothing said so."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    counts = {kind: len(reports) for kind, reports in reporter.stats.items()} if reporter is not None else {}
    if session.exitstatus == pytest.ExitCode.OK and counts.get("skipped", 0) > _MANY and not counts.get("passed"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish() -> None:
    """Keep what test modules import out of garbage collections: 770,000 objects, a fifth of a loader test's time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Skip a test that lacks a GPU, or whose fixtures' packages are missing."""
    with _skipping_without_packages():
        _skip_without_gpu(item)
        return (yield)


def _skip_without_gpu(item: pytest.Item) -> None:
    """Skip tests marked ``cuda`` without a GPU, or fail them with PICSTORE_REQUIRE_CUDA=1; leave some to a child."""
    if item.get_closest_marker("interpreted") and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("tests/train/cuda/test_interpreted.py runs it, as this process compiles Triton's kernels")
    if item.get_closest_marker("cuda") is None:
        return
    import torch

    if not torch.cuda.is_available():
        if os.environ.get("PICSTORE_REQUIRE_CUDA") == "1":
            pytest.fail("there is no GPU, and PICSTORE_REQUIRE_CUDA=1 says that this must not skip")
        pytest.skip("there is no GPU")


def _skip_without_packages(error: BaseException | None) -> None:
    """Skip what fails as a package is missing that a test imports or that picstore says to install; on CI it fails.

    A package that picstore itself imports, and that is no dependency, stays an error.
    """
    if error is None:
        return
    if isinstance(error, ModuleNotFoundError):
        frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
        if Path(frames[-1].filename).is_relative_to(Path(__file__).parent):
            missing(str(error.name))
    named = re.search(r"pip install .*\[(\w+)\]'", str(error))
    if lacking := missing_packages(named[1]) if named else ():
        missing(", ".join(lacking))
    _skip_without_packages(error.__context__)


@contextlib.contextmanager
def _skipping_without_packages() -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        _skip_without_packages(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test whose packages are missing."""
    with _skipping_without_packages():
        return (yield)


class _SkippedModule(pytest.Item):
    """Stands for the tests of a module that cannot be imported; pytest-xdist shows no modules that are skipped."""

    def __init__(self, *, reason: str, **given: Any) -> None:
        super().__init__(**given)
        self.reason = reason

    def runtest(self) -> None:
        pytest.skip(f"all tests of a module: {self.reason}")


class _Module(pytest.Module):
    """A module of tests, or one skipped test where a package is missing that it imports."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            try:
                return super().collect()
            except (self.CollectError, MissingDependency) as error:
                _skip_without_packages(error.__cause__ or error)
                raise
        except pytest.skip.Exception as skipped:
            return [_SkippedModule.from_parent(self, name="all", reason=str(skipped))]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Collect a file of tests."""
    return _Module.from_parent(parent, path=module_path)


@pytest.fixture(scope="session", autouse=True)
def _fork_server_with_kernels() -> Iterator[None]:
    """Load the kernels in the engine's fork server, which starts once a session instead of once a conversion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            worker_processes, "start_fork_server", functools.partial(worker_processes.start_fork_server, *_PRELOADED)
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Note the indexes that tests make in a folder of theirs, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def _restart_fork_server() -> None:
    """Give the engine's processes the present environment: they inherit the fork server's."""
    worker_processes.stop_fork_server()


@pytest.fixture(scope="session")
def photographs_folder() -> Path:
    """400 ImageNet photographs in 40 class folders, kept beside the checkout."""
    given = os.environ.get("PICSTORE_PHOTOGRAPHS")
    folder = Path(given or _PHOTOGRAPHS)
    if given and not folder.is_dir():
        pytest.fail(f"PICSTORE_PHOTOGRAPHS={given} is no folder")
    if not folder.is_dir():
        pytest.skip(f"needs photographs: {folder} is no folder and PICSTORE_PHOTOGRAPHS is not set")
    return folder


@pytest.fixture(scope="session")
def photographs(photographs_folder: Path) -> list[Path]:
    """The photographs' paths."""
    return sorted(photographs_folder.glob("*/*.JPEG"))


@pytest.fixture(scope="session")
def make_dataset_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes data sets, each once a session: many tests take the same ones."""

    @functools.cache
    def make(count: int, classes: int, shape: DatasetShape, width: int, height: int) -> Path:
        path = tmp_path_factory.mktemp("made") / "dataset"
        with picstore.Writer(path, classes=[f"class{k}" for k in range(classes)], shape=shape) as writer:
            for number in range(count):
                picked = picture(number, width=width + number % 7, height=height + number % 5)
                writer.add(picked, label=number % classes, extra={"number": number})
        return path

    return make


@pytest.fixture
def make_dataset(tmp_path: Path, make_dataset_once: Callable[..., Path]) -> Callable[..., Path]:
    """Makes a small data set of ``count`` pictures; label = id mod ``classes``."""

    def make(
        count: int = 50,
        *,
        name: str = "dataset",
        classes: int = 5,
        streams: int = 3,
        container_size: int = 16 << 10,
        file_size: int = 64 << 10,
        width: int = 60,
        height: int = 40,
    ) -> Path:
        shape = DatasetShape(streams=streams, container_size=container_size, file_size=file_size)
        made = make_dataset_once(count, classes, shape, width, height)
        return Path(shutil.copytree(made, tmp_path / name))

    return make


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """URL of an S3 server; the environment says where it is, for child processes too."""
    require(importlib.util.find_spec("obstore"), "obstore")
    require(importlib.util.find_spec("moto"), "moto[server]")
    with s3_server() as url, pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", url)
        environment.setenv("AWS_ACCESS_KEY_ID", "name")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("AWS_REGION", "us-east-1")
        _restart_fork_server()
        yield url


@pytest.fixture(scope="session")
def azure() -> Iterator[str]:
    """URL of Azurite, which npm installs where it is not in the user's cache."""
    require(importlib.util.find_spec("obstore"), "obstore")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which installs Azurite")
    try:
        azurite = install_azurite(npm)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"needs Azurite, which npm cannot install: {error}")
    with azure_server(azurite) as url, pytest.MonkeyPatch.context() as environment:
        environment.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        environment.setenv("AZURITE_BLOB_STORAGE_URL", url)
        _restart_fork_server()
        yield url


@pytest.fixture(scope="session")
def google(s3: str) -> Iterator[str]:
    """URL of what Google's client takes for its store."""
    with GoogleProxy(s3) as between, pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_EMULATOR_HOST", between.url)
        _restart_fork_server()
        yield between.url


_numbers = itertools.count()


@pytest.fixture
def bucket(s3: str) -> str:
    """URL of an empty bucket, ``s3://test-0``."""
    name = f"test-{next(_numbers)}"
    request(f"{s3}/{name}", "PUT")
    return f"s3://{name}"


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Stands between the server and clients that are made from now on in this process; no retries."""
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(0))
    monkeypatch.setattr(obstore_file, "_clients", {})
    with Proxy(s3) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        yield between


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    """A web server of an empty folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    with WebServer(folder) as running:
        yield running


@pytest.fixture
def hub(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub with OWNER/NAME at the revisions main and v1."""
    for revision in ("main", "v1"):
        folder = server.folder / "owner" / "name" / revision / "photos" / "cat"
        folder.mkdir(parents=True)
        (folder / "a b.jpg").write_bytes(jpeg(len(revision)))
        (folder.parent / "empty").write_bytes(b"")
    monkeypatch.setattr(obstore_file, "_clients", {})
    with Hub(server.folder, server, TOKEN) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        _restart_fork_server()
        yield running
    _restart_fork_server()


def _find_chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; until it ends, its event loop counts as running, and asyncio.run is refused."""
    chromium = _find_chromium()
    require(chromium, "chromium, of the package chromium,")
    if os.environ.get("CI") != "true":
        pytest.importorskip("playwright.sync_api")
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()
