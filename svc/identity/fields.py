"""Types of fields that the requests of several areas share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

Email = Annotated[
    str,
    Field(min_length=3, max_length=254, pattern=r"^[!-?A-~]+@[!-?A-~]+$"),
    AfterValidator(lambda text: text.lower()),
]
"""An email address in lower case; whether it is somebody's is not asked."""

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
"""A name for people to read: not blank."""

Text = Annotated[str, Field(max_length=2000)]

Reason = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S")]
"""Why something is done, for those who read of it later: not blank."""

NewPassword = Annotated[str, Field(min_length=12, max_length=128, pattern=r"^[!-~]*$")]
"""A password to be set; `passwords.check_password` holds the whole policy."""
