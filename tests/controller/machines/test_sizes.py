"""Sizes as a refusal tells them."""

from __future__ import annotations

import pytest

from svc_actors.sizes import disk_text, memory_text


@pytest.mark.parametrize(
    ("mib", "text"),
    [(64, "64 MiB"), (1024, "1 GiB"), (1536, "1.5 GiB"), (4 * 1024 * 1024, "4 TiB"), (1023.99, "1023.9 MiB")],
)
def test_memory_is_told_in_the_unit_that_people_use(mib: float, text: str) -> None:
    assert memory_text(mib) == text


def test_a_disk_is_told_in_the_unit_that_people_use() -> None:
    assert (disk_text(0), disk_text(10), disk_text(2560)) == ("0 GiB", "10 GiB", "2.5 TiB")
