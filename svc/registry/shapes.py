"""Text types with a pattern, and the words that describe the pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from svc_common.characters import CONTROLS, TURNING


@dataclass(frozen=True)
class Shape:
    """An annotation of `str`: the whole text must match `pattern`, which the OpenAPI document shows. The error for any
    other text is "must be" followed by `words`; with `Field(pattern=...)` the error would show the regular
    expression."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) | {"pattern": f"^(?:{self.pattern})$"}

    def _checked(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise PydanticCustomError("shape", "must be {words}", {"words": self.words})
        return text


LINE = Shape(
    rf"[^{CONTROLS}{TURNING}]*", "one line, without control characters and marks that turn the direction of text"
)
NAME = Shape(
    rf"[^{CONTROLS}{TURNING}]*[^\s{CONTROLS}{TURNING}][^{CONTROLS}{TURNING}]*",
    "one line that is not blank, without control characters and marks that turn the direction of text",
)
TEXT = Shape(
    rf"(?:[^{CONTROLS}{TURNING}]|[\t\r\n])*", "text without control characters and marks that turn its direction"
)
"""Allows line breaks and tabs."""


class NullResets:
    """An annotation of an optional field of a change: null gives it the value that a new one has by default, while
    leaving it out changes nothing."""


NULL_RESETS = NullResets()


@dataclass(frozen=True)
class Preset:
    """An annotation of a field that people mostly want and programs do not expect: the command line sends `value` where
    the user says nothing, an API client that leaves the field out gets its default."""

    value: bool
