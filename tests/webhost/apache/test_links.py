"""By which links visitors come to a folder past its address."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from svc_webhost.apache.links import SiteLinks, reachable


@pytest.mark.parametrize(
    ("links", "folder", "around"),
    [
        ([], "public/a", None),
        ([("public/way", "public/a")], "public/a", "public/way"),
        ([("public/way", "public/a/b")], "public/a", "public/way"),
        ([("public/way", "public")], "public/a", "public/way"),
        ([("public/way", "public")], "public", "public/way"),
        ([("public/way", "public/b")], "public/a", None),
        ([("public/a/way", "public/a/b")], "public/a", None),
        ([("public/way", "public/ab")], "public/a", None),
        ([("www", "public")], "public/a", None),
        ([("public/way", "private"), ("private/back", "public/a")], "public/a", "private/back"),
        ([("private/back", "public/a"), ("public/way", "private")], "public/a", "private/back"),
        ([("public/way", "private/a")], "private/a", "public/way"),
        ([("private/way", "private/a")], "private/a", None),
    ],
)
def test_a_link_that_visitors_can_follow_leads_around_what_it_leads_into(
    links: list[tuple[str, str]], folder: str, around: str | None
) -> None:
    assert SiteLinks(reachable(links)).around(PurePosixPath(folder)) == around
