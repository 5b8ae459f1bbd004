"""Types of fields that the requests of several areas share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from svc.registry.shapes import LINE, NAME, TEXT, Shape

Email = Annotated[
    str,
    Field(min_length=3, max_length=254),
    Shape(r"[!-?A-~]+@[!-?A-~]+", "an email address such as ada@example.org"),
    AfterValidator(lambda text: text.lower()),
]
"""An email address in lower case. Whether it belongs to anybody is not checked."""

Name = Annotated[str, Field(min_length=1, max_length=200), NAME]
"""A name for people to read: one line, not blank."""

Line = Annotated[str, Field(max_length=200), LINE]
Phone = Annotated[str, Field(max_length=50), LINE]

Text = Annotated[str, Field(max_length=2000), TEXT]

Reason = Annotated[
    str, Field(min_length=1, max_length=1000, description="The reason, for those who read it later."), NAME
]
"""A reason, for people who read about the action later: one line, not blank."""

NewPassword = Annotated[str, Field(min_length=12, max_length=128), Shape(r"[!-~]*", "printable ASCII without spaces")]
"""A new password; `passwords.check_password` checks the full policy."""
