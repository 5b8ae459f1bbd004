"""What may be set of a site's PHP. Each is bounded, and none can end the line that it is rendered into."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

PhpVersion = Annotated[str, StringConstraints(pattern=r"^[5-9]\.[0-9]$", max_length=3)]
"""Such as 8.2: as Debian's packages and folders name it."""

MOST_EXECUTION_SECONDS: Final = 300
"""As long as the web server waits for an answer."""
MOST_UPLOAD_MIB: Final = 500
"""With the rest of a form it stays below what the web server takes of a request."""

MemoryLimitMib = Annotated[int, Field(ge=16, le=4096, description="memory_limit: what one request may use, in MiB.")]
UploadMib = Annotated[
    int, Field(ge=1, le=MOST_UPLOAD_MIB, description="upload_max_filesize in MiB; post_max_size is 8 more.")
]
ExecutionSeconds = Annotated[
    int, Field(ge=1, le=MOST_EXECUTION_SECONDS, description="max_execution_time: seconds that one request may compute.")
]
InputVariables = Annotated[int, Field(ge=100, le=100_000, description="max_input_vars: fields of one form.")]
Workers = Annotated[int, Field(ge=1, le=200, description="Requests that are answered at the same time.")]
TimeZone = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Z][A-Za-z0-9_+-]{0,30}(/[A-Z][A-Za-z0-9_+-]{0,30}){0,2}$", max_length=64),
    Field(description="date.timezone, such as Europe/Vienna."),
]


class ErrorReporting(StrEnum):
    """Which errors PHP reports: to its log, and to visitors where `display_errors` is on."""

    ALL = "all"
    WITHOUT_DEPRECATED = "without_deprecated"
    WITHOUT_NOTICES = "without_notices"
    FATAL = "fatal"


class PhpSettings(BaseModel):
    """What a site's PHP begins with. Code may change at run time what PHP lets it; hard bounds are the site's limits,
    and the seconds after which a request is ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_limit_mib: MemoryLimitMib = 256
    upload_max_filesize_mib: UploadMib = 64
    max_execution_time: ExecutionSeconds = 60
    max_input_vars: InputVariables = 5000
    display_errors: bool = False
    error_reporting: ErrorReporting = ErrorReporting.WITHOUT_DEPRECATED
    timezone: TimeZone = "UTC"
    workers: Workers = 8
