"""Types of fields of sites, their domains and their redirects. They only check the syntax; whether a name or a target
is allowed is decided later."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from svc.registry.shapes import NAME, Shape

Domain = Annotated[
    str,
    Field(min_length=3, max_length=253, description="A domain name; IDN in its own letters or as xn--."),
    Shape(
        r"[^\u0000-,/:-@\[-`{-\u00a0\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+",
        "a domain name such as shop.example.org",
    ),
]

ProxyTarget = Annotated[
    str,
    Field(max_length=300, description="Where the site is served from, as https://app.example.org:8443"),
    Shape(
        r"https?://(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?",
        "a URL without path such as https://app.example.org:8443, in lowercase",
    ),
]

RedirectPath = Annotated[
    str,
    Field(max_length=512, description="As visitors ask for it, decoded and without its query."),
    Shape(r"/[\w/.~!&()*+,=:@-]*", "a path that starts with /, without spaces, quotes, % and ?"),
]

RedirectTarget = Annotated[
    str,
    Field(max_length=2048, description="An http or https URL, or a path of the same site."),
    Shape(
        r"https?://[A-Za-z0-9.\[\]:-]+(?:/[A-Za-z0-9/._~!&()*+,=:@%?#-]*)?"
        r"|/(?:[A-Za-z0-9._~!&()*+,=:@%?#-][A-Za-z0-9/._~!&()*+,=:@%?#-]*)?",
        "an http or https URL, or a path that starts with one /, encoded",
    ),
]

DeniedPattern = Annotated[
    str,
    Field(
        max_length=255,
        description="As in .gitignore: /private with what is below, debug.log wherever it lies, *.bak, backup*,"
        " /uploads/*.php in that folder, /uploads/**/*.php below as well.",
    ),
    Shape(
        r"(?:/(?:[\w.~!&()+,=:@-]+/)*(?:\*\*/)?)?(?:\*[\w.~!&()+,=:@-]+|[\w.~!&()+,=:@-]+\*?)/?",
        "a path such as /private, a name such as debug.log, or one with a star at its start or end such as *.bak",
    ),
]

ProtectedPath = Annotated[
    str,
    Field(max_length=255, description="A folder or a file as visitors ask for it; / is the whole site."),
    Shape(r"/(?:[\w.~!&()+,=:@-]+(?:/[\w.~!&()+,=:@-]+)*)?", "a path such as /members, without a slash at its end"),
]

PathLogin = Annotated[
    str,
    Field(min_length=1, max_length=64, description="The name that visitors sign in with."),
    Shape(r"[A-Za-z0-9._@-]+", "letters, digits and . _ @ -"),
]

PathPassword = Annotated[
    str,
    Field(min_length=12, max_length=128, description="If left out, one is generated and shown once."),
    Shape(r"[!-~]*", "printable ASCII without blanks"),
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
