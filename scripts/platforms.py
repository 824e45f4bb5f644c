"""Run picstore on every platform that this machine can have; the program of ./scripts/platforms."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from environments import (
    ROOT,
    SUITES,
    Environment,
    Missing,
    build_python,
    execute,
    find_python,
    in_chroot,
    in_venv,
    install,
    mounted,
    run,
    uv,
)

HOURS = 3600.0
PINNED = ("--constraint", ROOT / "constraints.txt", "--no-binary", "pyvips")  # pyvips has no wheel at all
PYTEST = "-m pytest -n2 --dist=worksteal -p no:cacheprovider -vv -rfEs"
NOTHING = "not run"
ROUNDS = 15  # of --rate; an epoch of 400 photographs takes 1 s


@dataclass(frozen=True, slots=True)
class Platform:
    """A Python of this system, or of a chroot of Debian for a kind of machine, by Debian's name."""

    version: str
    machine: str = ""
    epochs: int = 40  # of the default loader
    macos: bool = False  # with scripts/macos.py in place of the system's calls
    numba: str = ""  # a release, for the smoke script alone

    @property
    def name(self) -> str:
        if self.machine:
            return f"{self.version} on Debian {SUITES[self.version]}, {self.machine}"
        return self.version + ", macOS emulated" * self.macos + (self.numba and f", numba {self.numba}")

    @property
    def file(self) -> str:
        return self.name.replace(", ", "-").replace(" ", "-")

    @property
    def tested(self) -> bool:
        """Whether the default tests run too: not where qemu would need a day, and once for each Python."""
        return not (self.macos or self.numba or self.machine == "arm64")


PLATFORMS = (
    *map(Platform, ("3.10", "3.11", "3.12", "3.13")),
    Platform("3.14", epochs=1000),
    Platform("3.14t"),
    *(Platform("3.11", numba=release) for release in ("0.60.0", "0.65.1", "0.68.1")),
    *(Platform(version, epochs=1000, macos=True) for version in ("3.11", "3.14")),
    Platform("3.14", "amd64"),
    Platform("3.11", "arm64"),
    Platform("3.13", "arm64"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What the table says of a platform, with the commit that ran, and the day of its last run."""

    smoke: str = NOTHING
    tests: str = NOTHING
    lacking: list[str] = field(default_factory=list)  # packages of the tests without a wheel
    day: str = ""

    @property
    def good(self) -> bool:
        return self.smoke.startswith("all") and ".log" not in self.tests


class Results:
    """The results of all platforms, kept in a file, so that one table has what ran at different times."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def _load(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def of(self, platform: Platform) -> Result:
        return Result(**self._load().get(platform.name, {}))

    def store(self, platform: Platform, result: Result) -> None:
        self.file.write_text(json.dumps({**self._load(), platform.name: asdict(result)}, indent=2) + "\n")


def table(platforms: Iterable[Platform], results: Results) -> str:
    rows = [(platform, results.of(platform)) for platform in platforms]
    days = sorted({result.day for _, result in rows if result.day})
    lines = [" to ".join(dict.fromkeys([*days[:1], *days[-1:]])), ""]
    lines += ["| platform | smoke script | default tests |", "|---|---|---|"]
    for platform, result in rows:
        tests = result.tests if platform.tested else "–"
        lines.append(f"| {platform.name} | {result.smoke} | {tests} |")
    for platform, result in rows:
        if result.lacking:
            lines += ["", f"{platform.name}: no wheel of {', '.join(result.lacking)}"]
    return "\n".join(lines)


def newest_other(work: Path) -> list[Platform]:
    """The newest Python of this system that is not this one; none if there is no other."""
    for platform in reversed(PLATFORMS):
        if not (platform.machine or platform.macos or sys.version.startswith(f"{platform.version}.")):
            with suppress(Missing):
                find_python(work, platform.version)
                return [platform]
    return []


def run_smoke(environment: Environment, log: Path, *flags: str) -> str:
    """Run the smoke script; returns what the table says of it."""
    for name in ("smoke.py", "smoke.json"):
        shutil.copy(ROOT / "scripts" / name, environment.folder)
    succeeded, lines = execute(environment, log, f"{environment.inside}/smoke.py", *flags, limit=6 * HOURS)
    failed = [line for line in lines if ": ok, " not in line]
    return f"all {len(lines) - len(failed)} steps" if succeeded else f"{failed[-1] if failed else '?'}, {log}"


def run_tests(work: Path, environment: Environment, log: Path) -> tuple[str, list[str]]:
    """Run the default tests of the last commit; returns pytest's last line, and packages without wheels.

    Its source, beside the tests, is what they import, as in CI, at the versions of constraints.txt.
    """
    source = environment.folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    run("git", "archive", "-o", environment.folder / "source.tar", "HEAD")
    run("tar", "xf", environment.folder / "source.tar", "-C", source)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    requirements = [*extras["test"], *(each for each in extras["dev"] if each != "picstore[test]")]
    lacking = install(work, environment, requirements, *PINNED)
    shutil.rmtree(environment.packages / "picstore")  # the wheel's
    (environment.path_files / "source.pth").write_text(f"{environment.inside}/source\n")
    command = (*PYTEST.split(), "-m", "not slow", "source/tests")
    succeeded, lines = execute(environment, log, *command, limit=2 * HOURS)
    said = lines[-1].strip("= ").partition(" in ")[0] if lines else "?"
    return said if succeeded else f"{said}, {log}", [name.partition(">")[0].partition("=")[0] for name in lacking]


def prepare(work: Path, platform: Platform, wheel: Path, *, fast: bool = False, suffix: str = "") -> Environment:
    """Install the wheel in a new environment of a platform; two at once have their suffixes."""
    if platform.machine:
        environment = in_chroot(work, platform.version, platform.machine)
    else:
        if not fast:
            build_python(work, platform.version)
        environment = in_venv(work, platform.version, platform.file + suffix)
    requirements = [f"picstore{'' if fast else '[torch,view]'} @ {wheel.as_uri()}"]
    requirements += [f"numba=={platform.numba}"] if platform.numba else []
    if install(work, environment, requirements):
        raise Missing("no wheels")
    if platform.macos:
        shutil.copy(ROOT / "scripts" / "macos.py", environment.folder / "sitecustomize.py")
        environment.variables["PYTHONPATH"] = str(environment.folder)
    return environment


def check(work: Path, platform: Platform, options: argparse.Namespace, wheel: Path, before: Result) -> Result:
    """Run what the options and a platform's row want; what is not run is as before."""
    commit = "no commit"
    with suppress(Missing):
        commit = run("git", "describe", "--always", "--dirty", "--abbrev=7")
    result = replace(before, day=str(datetime.date.today()))
    with ExitStack() as stack:
        try:
            environment = prepare(work, platform, wheel, fast=options.fast)
            if platform.machine:
                stack.enter_context(mounted(environment.folder.parent))
            if not options.no_smoke:
                flags = ["--no-torch"] if options.fast else [f"--epochs={platform.epochs}"]
                smoke = run_smoke(environment, work / f"{platform.file}.smoke.log", *flags)
                many = not options.fast and platform.epochs > 40
                result = replace(result, smoke=smoke + f", {platform.epochs:,} epochs" * many + f" ({commit})")
        except Missing as error:
            return replace(result, smoke=f"not here: {error}")
        if platform.tested and not (options.fast or options.no_tests):
            if platform.version.endswith("t"):
                environment.variables["PYTHON_GIL"] = "0"  # else Triton, for instance, switches the lock on
            try:
                tests, lacking = run_tests(work, environment, work / f"{platform.file}.tests.log")
                result = replace(result, tests=f"{tests} ({commit})", lacking=lacking)
            except Missing as error:
                result = replace(result, tests=f"not here: {error}")
    return result


def rate(work: Path, wheel: Path, photographs: Path) -> None:
    """Print images/s of Loader(isolate=False) on 3.14t and 3.14, which take turns; their first rounds are left out."""
    rounds: dict[str, list[tuple[float, float]]] = {"3.14": [], "3.14t": []}  # images/s, and CPU ms an image
    with ExitStack() as stack:
        processes: dict[str, Any] = {}
        for version in rounds:
            environment = prepare(work, Platform(version), wheel, suffix="-rate")
            dataset = environment.folder / "photographs"
            run(*environment.python, "-m", "picstore", "convert", "--quiet", photographs, dataset)
            command = [*environment.python, str(ROOT / "scripts" / "rate.py"), str(dataset)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes[version] = stack.enter_context(process)
        for _ in range(ROUNDS + 1):
            for version, process in processes.items():
                print(file=process.stdin, flush=True)
                images, seconds, cpu, lock = process.stdout.readline().split()
                if lock == "True" and version.endswith("t"):
                    raise Missing("a library has switched the lock of free-threaded Python on")
                rounds[version].append((int(images) / float(seconds), 1000 * float(cpu) / int(images)))
        for process in processes.values():
            process.communicate()
    for version, figures in rounds.items():
        speeds, costs = zip(*figures[1:], strict=True)
        print(f"{version}: {median(speeds):.0f} images/s, {min(speeds):.0f} to {max(speeds):.0f}; ", end="")
        print(f"{median(costs):.2f} ms of CPU time an image")
    ratios = [free[0] / locked[0] for locked, free in zip(rounds["3.14"][1:], rounds["3.14t"][1:], strict=True)]
    print(f"3.14t : 3.14 = {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}, in {ROUNDS} pairs of rounds")
    print(f"load of the last minute: {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="platforms of the table, all by default")
    parser.add_argument("--fast", action="store_true", help="the newest other Python that is there, without PyTorch")
    parser.add_argument("--no-tests", action="store_true", help="run the smoke script alone")
    parser.add_argument("--no-smoke", action="store_true", help="run the default tests alone")
    parser.add_argument("--table", action="store_true", help="run nothing; print what earlier runs have stored")
    parser.add_argument("--rate", type=Path, help="a folder of photographs: print images/s of 3.14t and 3.14 alone")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "picstore-platforms")
    options = parser.parse_args()
    if unknown := {*options.names} - {platform.name for platform in PLATFORMS}:
        parser.error(f"no platform {', '.join(unknown)}; there are: {'; '.join(p.name for p in PLATFORMS)}")
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    results = Results(work / ("fast.json" if options.fast else "results.json"))
    platforms = newest_other(work) if options.fast else PLATFORMS
    chosen = [platform for platform in platforms if not options.names or platform.name in options.names]
    if not options.table:
        with tempfile.TemporaryDirectory() as dist:
            uv(work, "build", "--quiet", "--wheel", "--out-dir", dist, ROOT)
            (wheel,) = Path(dist).glob("*.whl")
            if options.rate:
                rate(work, wheel, options.rate.resolve())
                return
            for platform in chosen:
                results.store(platform, check(work, platform, options, wheel, results.of(platform)))
    print(table(platforms, results))
    sys.exit(not all(results.of(platform).good for platform in chosen))


if __name__ == "__main__":
    main()
