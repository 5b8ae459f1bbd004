"""Types of fields of sites and their domains. These types only check the syntax; operations decide whether a name or a
target is allowed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from svc.registry.shapes import NAME, Preset, Shape
from svc_webhost.accepted import FALLBACK_PAGE, LONGEST_PAGE

Domain = Annotated[
    str,
    Field(min_length=3, max_length=253, description="A domain name; IDN in its own letters or as xn--."),
    Shape(
        r"[^\u0000-,/:-@\[-`{-\u00a0\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+",
        "a domain name such as shop.example.org",
    ),
]

WithWww = Annotated[
    bool,
    Field(description="Also at www. of the domain, if it is registered as such: of example.org, not shop.example.org."),
    Preset(True),
]

ProxyTarget = Annotated[
    str,
    Field(max_length=300, description="Where the site is served from, as https://app.example.org:8443"),
    Shape(
        r"https?://(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?",
        "a URL without path such as https://app.example.org:8443, in lowercase",
    ),
]

FallbackPage = Annotated[
    str,
    Field(
        max_length=LONGEST_PAGE,
        description="The page that answers for paths without a file, as /index.html: for single-page applications.",
    ),
    Shape(
        FALLBACK_PAGE.removeprefix("^").removesuffix("$"),
        "the path of a page of HTML such as /index.html",
    ),
]

WordPressTitle = Annotated[
    str,
    Field(min_length=1, max_length=200, description="Title of a new WordPress; its domain by default."),
    NAME,
]

WordPressLanguage = Annotated[
    str,
    Field(max_length=10, description="Of a new WordPress, as it names languages; en_US by default."),
    Shape(r"[a-z]{2,3}(?:_[A-Z]{2})?", "a language as WordPress names it: de_DE"),
]

SuspensionReason = Annotated[
    str,
    Field(min_length=1, max_length=500, description="Shown to the owner and administrators, not to visitors."),
    NAME,
]
