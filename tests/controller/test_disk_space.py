"""When a disk is called full, and when no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.disk_space import DiskLevel, Space, Thresholds

GIB = 2**30
OK, WARNING, CRITICAL = DiskLevel.OK, DiskLevel.WARNING, DiskLevel.CRITICAL


@pytest.mark.parametrize(
    ("free_gib", "before", "level"),
    [
        (200, OK, OK),
        (151, OK, OK),
        (150, OK, WARNING),
        (160, WARNING, WARNING),
        (171, WARNING, OK),
        (50, WARNING, CRITICAL),
        (60, CRITICAL, CRITICAL),
        (71, CRITICAL, WARNING),
        (200, CRITICAL, OK),
    ],
)
def test_a_level_begins_at_its_threshold_and_ends_well_past_it(
    free_gib: int, before: DiskLevel, level: DiskLevel
) -> None:
    assert Thresholds().level(Space(1000 * GIB, free_gib * GIB), before) is level


def test_little_free_space_is_critical_whatever_share_of_the_disk_it_is() -> None:
    small = Space(10 * GIB, 2 * GIB - 1)

    assert Thresholds().level(small, OK) is CRITICAL
    assert Thresholds().level(Space(10 * GIB, 2 * GIB), OK) is OK
    assert Thresholds().level(Space(10 * GIB, 2 * GIB), CRITICAL) is CRITICAL
    assert Thresholds(critical_free_mib=100).level(small, OK) is OK


def test_the_space_of_a_folder_is_what_df_says_of_it(tmp_path: Path) -> None:
    space = Space.of(tmp_path)

    assert 0 < space.free < space.size
    assert str(Space(1000 * GIB, 90 * GIB)) == "91 % full, 90 GiB of 1000 GiB free"
