"""Uploads: files received in parts, in any order and with repetitions, until they are complete."""

from __future__ import annotations

import binascii
import os
import re
import stat
from contextlib import suppress
from typing import Any, Final

from svc_webhost.confined import kernel
from svc_webhost.confined.files import FILE_MODE, entry, finish, sha256_of
from svc_webhost.confined.protocol import (
    Failed,
    FileError,
    UploadDiscard,
    UploadOpen,
    UploadPlace,
    UploadVerify,
    UploadWrite,
)
from svc_webhost.confined.tree import Tree, check_file, held, translate_errors

_ID: Final = re.compile(r"[0-9a-f]{32}")


def _name(upload: str) -> bytes:
    if _ID.fullmatch(upload) is None:
        raise FileError(Failed.INVALID, "There is no such upload.")
    return b"upload-" + upload.encode()


def _open(temporary: int, upload: str, flags: int) -> int:
    with translate_errors("The upload"):
        descriptor = kernel.open_beneath(temporary, _name(upload), flags | os.O_NONBLOCK, 0o600, follow=False)
    try:
        check_file(os.fstat(descriptor), "The upload")
    except FileError:
        os.close(descriptor)
        raise
    return descriptor


def open_upload(tree: Tree, request: UploadOpen) -> dict[str, Any]:
    with tree.temporary() as temporary, held(_open(temporary, request.upload, os.O_RDWR | os.O_CREAT)):
        return {}


def write_part(tree: Tree, request: UploadWrite, payload: bytes) -> dict[str, Any]:
    try:
        part = binascii.a2b_base64(payload, strict_mode=True)
    except ValueError:
        raise FileError(Failed.INVALID, "The part is not base64.") from None
    with tree.temporary() as temporary, held(_open(temporary, request.upload, os.O_RDWR)) as file:
        with translate_errors("The upload"):
            rest, offset = memoryview(part), request.offset
            while rest:
                done = os.pwrite(file, rest, offset)
                rest, offset = rest[done:], offset + done
    return {}


def verify(tree: Tree, request: UploadVerify) -> dict[str, Any]:
    """`placed`: the file is in the site already."""
    with tree.temporary() as temporary:
        try:
            file, placed = _open(temporary, request.upload, os.O_RDWR), False
        except FileError as gone:
            if gone.code is not Failed.NOT_FOUND:
                raise
            file, placed = tree.open_file(request.path), True
        with held(file), translate_errors("The upload"):
            if os.fstat(file).st_size != request.size or sha256_of(file) != request.sha256:
                raise FileError(Failed.INVALID, "What was uploaded does not have this SHA-256; send it again.")
            os.fsync(file)
    return {"placed": placed}


def place(tree: Tree, request: UploadPlace) -> dict[str, Any]:
    folder, name = tree.open_parent(request.path)
    with held(folder), tree.temporary() as temporary:
        with held(_open(temporary, request.upload, os.O_RDWR)) as file:
            mode = FILE_MODE
            with translate_errors(request.path), suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not request.replace:
                    raise FileError(Failed.EXISTS, f"There is something at {request.path} already.")
                check_file(found, request.path)
                mode = stat.S_IMODE(found.st_mode) & 0o777
            with translate_errors(request.path):
                finish(file, mode)
                kernel.rename(temporary, _name(request.upload), folder, name, replace=request.replace)
                os.fsync(folder)
            return entry(os.fsdecode(name), os.fstat(file), None)


def discard(tree: Tree, request: UploadDiscard) -> dict[str, Any]:
    with tree.temporary() as temporary, suppress(FileNotFoundError):
        os.unlink(_name(request.upload), dir_fd=temporary)
    return {}
