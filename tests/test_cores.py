"""The number of cores: the affinity, bounded by the CPU quotas of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from picstore import cores


def process(root: Path, mounts: list[tuple[str, str, str]], groups: list[str]) -> Path:
    """A folder of /proc with these mounts (root of the hierarchy, folder, kind and options) and lines of groups."""
    proc = root / "proc"
    proc.mkdir(exist_ok=True)
    lines = [f"30 24 0:26 {top} {root / name} rw,relatime shared:9 - {kind}" for top, name, kind in mounts]
    (proc / "mountinfo").write_text("\n".join(["22 1 8:1 / / rw - ext4 /dev/sda1 rw", *lines]) + "\n")
    (proc / "cgroup").write_text("\n".join(groups) + "\n")
    return proc


def quota(folder: Path, value: str, period: str = "") -> None:
    """Write a group's quota: ``cpu.max`` of version 2, or the two files of version 1 if there is a period."""
    folder.mkdir(parents=True, exist_ok=True)
    if not period:
        (folder / "cpu.max").write_text(value + "\n")
        return
    (folder / "cpu.cfs_quota_us").write_text(value + "\n")
    (folder / "cpu.cfs_period_us").write_text(period + "\n")


V2 = ("/", "cgroup", "cgroup2 cgroup2 rw,nsdelegate")
V1 = ("/", "cpu", "cgroup cgroup rw,cpu,cpuacct")


def test_the_least_quota_of_a_group_and_those_above_it_counts(tmp_path: Path) -> None:
    quota(tmp_path / "cgroup" / "pod", "150000 100000")
    quota(tmp_path / "cgroup" / "pod" / "one", "max 100000")
    quota(tmp_path / "cgroup" / "pod" / "one" / "deep", "400000 100000")
    assert sorted(cores.cpu_quotas(process(tmp_path, [V2], ["0::/pod/one/deep"]))) == [1.5, 4.0]


def test_quotas_of_version_1_are_read_where_the_cpu_controller_is(tmp_path: Path) -> None:
    quota(tmp_path / "cpu" / "a" / "b", "50000", "100000")
    quota(tmp_path / "cpu" / "a", "-1", "100000")
    quota(tmp_path / "cpu" / "other", "10000", "100000")
    proc = process(tmp_path, [("/", "mem", "cgroup cgroup rw,memory"), V1], ["9:memory:/other", "4:cpu,cpuacct:/a/b"])
    assert list(cores.cpu_quotas(proc)) == [0.5]


def test_a_container_that_sees_its_path_outside_reads_the_mounted_group(tmp_path: Path) -> None:
    quota(tmp_path / "cpu", "250000", "100000")
    assert list(cores.cpu_quotas(process(tmp_path, [V1], ["4:cpu,cpuacct:/docker/abc"]))) == [2.5]
    mounted = ("/docker/abc", "cpu", V1[2])
    assert list(cores.cpu_quotas(process(tmp_path, [mounted], ["4:cpu,cpuacct:/docker/abc"]))) == [2.5]
    quota(tmp_path / "cgroup", "70000 100000")
    assert list(cores.cpu_quotas(process(tmp_path, [V2], ["0::/../../x"]))) == [0.7]


@pytest.mark.parametrize("value", ["max 100000", "max", "", "0 100000", "1 0", "a b", "-1 100000"])
def test_no_quota_and_files_of_other_content_bound_nothing(value: str, tmp_path: Path) -> None:
    quota(tmp_path / "cgroup" / "one", value)
    assert list(cores.cpu_quotas(process(tmp_path, [V2], ["0::/one", "junk", ""]))) == []
    assert list(cores.cpu_quotas(tmp_path / "nothing")) == []


@pytest.mark.parametrize(("allowed", "expected"), [([0.5], 1), ([1.5], 2), ([3.0, 2.01], 3), ([64.0], 4), ([], 4)])
def test_a_quota_is_rounded_up_and_bounds_the_affinity(
    allowed: list[float], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "process_cpu_count", lambda: 4, raising=False)
    monkeypatch.setattr(cores, "cpu_quotas", lambda: iter(allowed))
    assert cores.count_cores() == expected
