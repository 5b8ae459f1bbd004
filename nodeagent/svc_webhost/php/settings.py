"""The settings of a site's PHP. Each is bounded, and none can end the line that it is rendered into."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from svc_webhost import accepted

PhpVersion = Annotated[str, StringConstraints(pattern=r"^[5-9]\.[0-9]$", max_length=3)]
"""A version such as 8.2, in the form of Debian's packages and folders."""

_LEAST_MEMORY, _MOST_MEMORY = accepted.MEMORY_LIMIT_MIB
_LEAST_UPLOAD, MOST_UPLOAD_MIB = accepted.UPLOAD_MIB
_LEAST_SECONDS, MOST_EXECUTION_SECONDS = accepted.EXECUTION_SECONDS
_LEAST_VARIABLES, _MOST_VARIABLES = accepted.INPUT_VARIABLES

MemoryLimitMib = Annotated[
    int, Field(ge=_LEAST_MEMORY, le=_MOST_MEMORY, description="memory_limit: what one request may use, in MiB.")
]
UploadMib = Annotated[
    int, Field(ge=_LEAST_UPLOAD, le=MOST_UPLOAD_MIB, description="upload_max_filesize in MiB; post_max_size is 8 more.")
]
ExecutionSeconds = Annotated[
    int,
    Field(
        ge=_LEAST_SECONDS,
        le=MOST_EXECUTION_SECONDS,
        description="max_execution_time: seconds that one request may compute.",
    ),
]
InputVariables = Annotated[
    int, Field(ge=_LEAST_VARIABLES, le=_MOST_VARIABLES, description="max_input_vars: fields of one form.")
]
Workers = Annotated[int, Field(ge=1, le=200, description="Requests that are answered at the same time.")]
TimeZone = Annotated[
    str,
    StringConstraints(pattern=accepted.TIME_ZONE, max_length=accepted.LONGEST_TIME_ZONE),
    Field(description="date.timezone, such as Europe/Vienna."),
]


class ErrorReporting(StrEnum):
    """Which errors PHP reports: to its log, and to visitors if `display_errors` is on."""

    ALL = "all"
    WITHOUT_DEPRECATED = "without_deprecated"
    WITHOUT_NOTICES = "without_notices"
    FATAL = "fatal"


class PhpSettings(BaseModel):
    """The initial settings of a site's PHP. Code may change at run time what PHP lets it; hard bounds are the site's
    limits, and the seconds after which a request is ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_limit_mib: MemoryLimitMib = 256
    upload_max_filesize_mib: UploadMib = 64
    max_execution_time: ExecutionSeconds = 60
    max_input_vars: InputVariables = 5000
    display_errors: bool = False
    error_reporting: ErrorReporting = ErrorReporting.WITHOUT_DEPRECATED
    timezone: TimeZone = "UTC"
    workers: Workers = 8
