"""The protocol between core and helper: frames, requests, and errors.

A frame is two lengths (32 bits each, network order), a JSON header and bytes. A request's header is its number, its
kind and its fields; the answer's is the number and either `result` or `failure` and `message`. Answers come in any
order. Names are text, with lone surrogates for bytes that are not UTF-8 (PEP 383).
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Final

LENGTHS: Final = struct.Struct("!II")
MAX_HEADER: Final = 1 << 20
MAX_PAYLOAD: Final = 8 << 20

PARSING_SECONDS: Final = 60
"""A regular expression blocks the whole process while it is matched, and no thread could end it: the kernel does."""

TEMPORARY: Final = b".svc-tmp"
"""A folder in every site's root: unfinished uploads, files being written, files being removed."""


class Failed(StrEnum):
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    CONFLICT = "conflict"
    """The entry is not of the kind that the request needs, or was changed meanwhile."""
    REFUSED = "refused"
    """The path leads out of the site, or the entry belongs to another account."""
    INVALID = "invalid"
    NO_SPACE = "no_space"
    BROKEN = "broken"


class FileError(Exception):
    """The error of a request; nothing was changed unless the message says so."""

    def __init__(self, code: Failed, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class FileRequest:
    """Paths are relative to the site's root; an empty one is the root itself."""

    kind: ClassVar[str]
    mutates: ClassVar[bool] = True
    """Mutations run one after the other, concurrently with requests that do not mutate."""
    long: ClassVar[bool] = False
    """Whether the request prepares its change outside of the site, concurrently with other mutations; one such request
    runs at a time."""
    parses: ClassVar[bool] = False
    """Whether the request parses a tenant's input, and is killed after `PARSING_SECONDS`; one such request runs at a
    time."""


@dataclass(frozen=True)
class ListFolder(FileRequest):
    """The `limit` entries from `offset` on, folders first, by name. The answer's bytes are a JSON list of entries."""

    kind = "list"
    mutates = False
    path: str
    offset: int
    limit: int


@dataclass(frozen=True)
class Stat(FileRequest):
    kind = "stat"
    mutates = False
    path: str


@dataclass(frozen=True)
class Read(FileRequest):
    """`length` bytes of a regular file from `offset` on, with the version of the file."""

    kind = "read"
    mutates = False
    path: str
    offset: int
    length: int


@dataclass(frozen=True)
class Write(FileRequest):
    """The payload becomes the whole file. `expected`: SHA-256 of the content that the file must have now."""

    kind = "write"
    path: str
    replace: bool
    expected: str | None = None


@dataclass(frozen=True)
class MakeFolder(FileRequest):
    kind = "mkdir"
    path: str
    parents: bool


@dataclass(frozen=True)
class Rename(FileRequest):
    kind = "rename"
    path: str
    to: str
    replace: bool


@dataclass(frozen=True)
class Delete(FileRequest):
    """Files, links, and folders with their content."""

    kind = "delete"
    paths: list[str]


@dataclass(frozen=True)
class ChangeMode(FileRequest):
    kind = "chmod"
    path: str
    mode: int


@dataclass(frozen=True)
class Copy(FileRequest):
    """`most`: bytes that the plan leaves; None without one."""

    kind = "copy"
    long = True
    path: str
    to: str
    most: int | None = None


@dataclass(frozen=True)
class Compress(FileRequest):
    kind = "compress"
    long = True
    paths: list[str]
    to: str
    format: str
    most: int | None = None


@dataclass(frozen=True)
class Extract(FileRequest):
    """Unpack the archive `path` into the folder `to`, which is created if needed. Existing files are an error, before
    anything is placed, unless `replace`. `encoding`: one of `zip_names.ENCODINGS`, for names whose encoding a zip
    archive does not say."""

    kind = "extract"
    long = True
    path: str
    to: str
    replace: bool
    most: int | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class UploadOpen(FileRequest):
    kind = "upload_open"
    mutates = False
    upload: str


@dataclass(frozen=True)
class UploadWrite(FileRequest):
    """The payload is a part of an upload, in base64 as received: decoding is most of the work, and the core is shared
    by all sites. An unfinished upload is not a part of the site, so this runs concurrently with mutations."""

    kind = "upload_write"
    mutates = False
    upload: str
    offset: int


@dataclass(frozen=True)
class UploadVerify(FileRequest):
    """Check size and SHA-256 of an upload; or, if it no longer exists, of the file at `path`: then it was placed, and
    the caller missed the answer."""

    kind = "upload_verify"
    mutates = False
    upload: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class UploadPlace(FileRequest):
    kind = "upload_place"
    upload: str
    path: str
    replace: bool


@dataclass(frozen=True)
class UploadDiscard(FileRequest):
    kind = "upload_discard"
    mutates = False
    upload: str


@dataclass(frozen=True)
class JudgeHtaccess(FileRequest):
    """Judge the site's .htaccess files (`judge`, which describes the payload and the answer). `root`: a folder that is
    judged as if it were the site's root."""

    kind = "judge_htaccess"
    mutates = False
    parses = True
    root: str


@dataclass(frozen=True)
class RewriteConfiguration(FileRequest):
    """Rewrite values and folders of the configuration at `path`, whose name says its form: the payload is a JSON
    object, `values` and `paths` as `archives.applications.rewritten` takes them. `problem` of the result: why it was
    left as it is."""

    kind = "rewrite_configuration"
    parses = True
    path: str


@dataclass(frozen=True)
class ComparePages(FileRequest):
    """The payload is two pages, the first of `length` bytes. `similarity` of the result: the share of common words."""

    kind = "compare_pages"
    mutates = False
    parses = True
    length: int


@dataclass(frozen=True)
class ReadSitemap(FileRequest):
    """The payload is a sitemap.xml; the answer's bytes are a JSON list of the first `most` paths of the site with these
    `names`."""

    kind = "read_sitemap"
    mutates = False
    parses = True
    names: list[str]
    most: int


@dataclass(frozen=True)
class PlaceRestored(FileRequest):
    """Move what the core has put into the temporary folder to `path`, replacing what is there. Parent folders are
    created."""

    kind = "place_restored"
    name: str
    path: str


@dataclass(frozen=True)
class PlaceImported(FileRequest):
    """Move the content of the folder `staged` to the same places below the site's root: its document root instead of
    the previous one, in one step, everything else over what is there. The previous document root is in `staged` then.
    Nothing is moved if something is a folder here and a file there."""

    kind = "place_imported"
    staged: str


@dataclass(frozen=True)
class FreeSpace(FileRequest):
    kind = "free_space"
    mutates = False


REQUESTS: Final[dict[str, type[FileRequest]]] = {
    request.kind: request
    for request in (
        ListFolder, Stat, Read, Write, MakeFolder, Rename, Delete, ChangeMode, Copy, Compress, Extract,
        UploadOpen, UploadWrite, UploadVerify, UploadPlace, UploadDiscard, PlaceRestored,
        PlaceImported, FreeSpace, JudgeHtaccess, RewriteConfiguration, ComparePages, ReadSitemap,
    )
}  # fmt: skip


def encode(header: dict[str, Any], payload_length: int = 0) -> bytes:
    """A frame without its payload."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), payload_length) + text


def encode_request(number: int, request: FileRequest, payload_length: int) -> bytes:
    return encode({"number": number, "kind": request.kind, "fields": asdict(request)}, payload_length)


def decode_request(header: dict[str, Any]) -> FileRequest:
    """Raises `FileError` for an invalid request: the helper does not trust the core either."""
    kind = REQUESTS.get(header["kind"])
    given = header["fields"]
    if kind is None or set(given) != {field.name for field in fields(kind)}:
        raise FileError(Failed.INVALID, "There is no such request.")
    for field in fields(kind):
        if not _fits(given[field.name], str(field.type)):
            raise FileError(Failed.INVALID, f"{field.name} is no {field.type}.")
    return kind(**given)


def _fits(value: object, annotation: str) -> bool:
    match annotation:
        case "str":
            return isinstance(value, str)
        case "str | None":
            return value is None or isinstance(value, str)
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
        case "int | None":
            return value is None or _fits(value, "int")
        case "list[str]":
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return False
