"""Models of the file manager's requests and answers. A path is a type of its own, which checks the syntax; the helper
that opens the path checks where it leads (`svc_webhost.confined`)."""

from __future__ import annotations

import os
import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final
from urllib.parse import unquote_to_bytes
from uuid import UUID

from pydantic import AfterValidator, Field, TypeAdapter
from pydantic_core import PydanticCustomError

from svc.registry.downloads import FilePart
from svc.registry.operation import Model
from svc.registry.shapes import Shape
from svc_actors.panel.files import Upload, UploadStatus

_CONTROLS: Final = r"\u0000-\u001f\u007f"
_NAME: Final = rf"(?!\.{{1,2}}(?:/|$))[^/{_CONTROLS}]{{1,255}}"
SITE_PATH: Final = rf"{_NAME}(?:/{_NAME})*"
_ENCODED_NAME: Final = rf"(?!\.{{1,2}}(?:/|$))[^/{_CONTROLS}]{{1,765}}"
_DECODED_NAME: Final = r"(?!\.{1,2}(?:/|\Z))[^/\u0000]{1,255}"
"""May have control characters: it was encoded for that."""
_DECODED_PATH: Final = re.compile(rf"(?=.{{1,1024}}\Z){_DECODED_NAME}(?:/{_DECODED_NAME})*", re.DOTALL)
_PLAIN_PATH: Final = re.compile(rf"(?=.{{1,1024}}\Z){SITE_PATH}")
_PATH_WORDS: Final = (
    "a path beneath the site's folder, such as public/index.html: no / at its ends, no . and no .. in it"
)
MAX_TEXT_BYTES: Final = 512 << 10
"""The size limit of a file that is read or written as text."""
CHUNK_BYTES: Final = 512 << 10
"""The recommended size of an upload's parts, so that a request stays below 1 MB."""
MAX_CHUNK_TEXT: Final = 960_000
MAX_PAGE_BYTES: Final = 1 << 20


def _in_fours(text: str) -> str:
    """Check that the length of a base64 text is a multiple of four. The helper checks the rest when it decodes:
    matching a part of an upload with a pattern would take as long as decoding it."""
    if len(text) % 4 or not text.isascii():
        raise PydanticCustomError("shape", "must be {words}", {"words": "base64"})
    return text


SitePath = Annotated[str, Field(min_length=1, max_length=1024), Shape(SITE_PATH, _PATH_WORDS)]
EncodedPath = Annotated[
    str,
    Field(min_length=1, max_length=3 * 1024, description="At most 1024 characters, and 255 a name, when decoded."),
    Shape(rf"{_ENCODED_NAME}(?:/{_ENCODED_NAME})*", _PATH_WORDS),
]
"""Of a request with `Escaped`, of which `check_path` checks the rest: percent-encoding makes three characters of one
byte."""
FolderPath = Annotated[
    str,
    Field(max_length=1024, description="Empty: the site's own folder."),
    Shape(rf"(?:{SITE_PATH})?", f"{_PATH_WORDS}; or empty"),
]
FileName = Annotated[str, Field(min_length=1, max_length=255), Shape(_NAME, "a name without /, and not . or ..")]
FileMode = Annotated[
    str,
    Field(min_length=3, max_length=4, description="Octal, as 644. Neither set-uid nor set-gid."),
    Shape("[01]?[0-7]{3}", "an octal mode such as 644 or 0755"),
]
Sha256 = Annotated[
    str,
    Field(min_length=64, max_length=64),
    Shape("[0-9a-fA-F]{64}", "a SHA-256 in hex"),
    AfterValidator(str.lower),
]
FileVersion = Annotated[
    str, Field(min_length=32, max_length=32), Shape("[0-9a-f]{32}", "a version as returned by an earlier answer")
]
Base64 = Annotated[
    str,
    Field(max_length=MAX_CHUNK_TEXT, json_schema_extra={"pattern": "^[A-Za-z0-9+/]*={0,2}$"}),
    AfterValidator(_in_fours),
]
Text = Annotated[str, Field(max_length=MAX_TEXT_BYTES), Shape(r"[^\u0000]*", "text without NUL")]


Escaped = Annotated[
    bool,
    Field(description="The path is percent-encoded: for names that are not UTF-8 or have control characters."),
]


def unescaped(path: str) -> str:
    """The path that `path` encodes, as the helper takes it: with lone surrogates for bytes that are not UTF-8."""
    return os.fsdecode(unquote_to_bytes(path))


def check_path(field: str, path: str, escaped: bool) -> None:
    """Check an `EncodedPath` of a request in the form that the helper gets."""
    allowed = _DECODED_PATH.fullmatch(unescaped(path)) if escaped else _PLAIN_PATH.fullmatch(path)
    if allowed is None:
        problem = f"must be {_PATH_WORDS}; and of at most 255 characters a name, and 1024 in all"
        raise PydanticCustomError("contradiction", "{problem}", {"field": field, "problem": problem})


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


class ArchiveFormat(StrEnum):
    ZIP = "zip"
    TAR_GZ = "tar.gz"


class ZipEncoding(StrEnum):
    UTF_8 = "utf-8"
    CP437 = "cp437"
    CP850 = "cp850"
    CP866 = "cp866"
    CP1250 = "cp1250"
    CP1251 = "cp1251"
    CP1252 = "cp1252"
    GB18030 = "gb18030"
    BIG5 = "big5"
    SHIFT_JIS = "shift_jis"
    EUC_KR = "euc_kr"


class FileEntry(Model):
    """`mode` is octal. `own`: the site's account owns it. `target`: of a symbolic link. `name_exact` is false if the
    name contains bytes that are not UTF-8, shown as U+FFFD. `escaped`: a name with such bytes, or with control
    characters, percent-encoded; it can be renamed or deleted by this name, with `escaped: true` in the request."""

    name: str
    kind: EntryKind
    size: int
    mode: str
    modified_at: datetime
    own: bool
    target: str | None
    name_exact: bool
    escaped: str | None


ENTRIES: Final = TypeAdapter(list[FileEntry])


class FileList(Model):
    """`entries` from `offset` on, of `total` in the folder; folders first, then by name."""

    path: str
    entries: list[FileEntry]
    total: int
    offset: int


class FileContent(Model):
    """A text file. Send `sha256` as `expected_sha256` when you write it back."""

    path: str
    content: str
    size: int
    sha256: str


class FileWritten(Model):
    entry: FileEntry
    sha256: str


class FilesDeleted(Model):
    deleted: int


class FilePage(FilePart):
    """A part of a site's file."""


class ByteRange(Model):
    """The bytes from `start` up to `end`, which is excluded."""

    start: int
    end: int


class FileUpload(Model):
    """`received`: the bytes that have arrived; `chunk_bytes`: the recommended size of a part. An unfinished upload is
    removed a day after its last part."""

    id: UUID
    path: str
    size: int
    replace: bool
    status: UploadStatus
    received: list[ByteRange]
    chunk_bytes: int
    sha256: str | None
    created_at: datetime

    @classmethod
    def of(cls, upload: Upload) -> FileUpload:
        return cls(
            id=upload.id,
            path=upload.path,
            size=upload.size,
            replace=upload.replace,
            status=upload.status,
            received=[ByteRange(start=start, end=end) for start, end in upload.received],
            chunk_bytes=CHUNK_BYTES,
            sha256=upload.sha256,
            created_at=upload.created_at,
        )
