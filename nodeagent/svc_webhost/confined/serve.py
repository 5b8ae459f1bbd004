"""The helper's loop: requests in, answers out, until the socket ends.

All threads are started before the first request: one for changes of the site, one that prepares large changes
meanwhile, and a few for requests that change nothing. The end of the socket ends the process, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any, Final

from svc_webhost.confined import compress, configuration, extract, files, judge, pages, uploads
from svc_webhost.confined.confine import Identity, confine, start_no_processes
from svc_webhost.confined.protocol import (
    LENGTHS,
    MAX_HEADER,
    MAX_PAYLOAD,
    PARSING_SECONDS,
    ChangeMode,
    ComparePages,
    Compress,
    Copy,
    Delete,
    Extract,
    Failed,
    FileError,
    FileRequest,
    FreeSpace,
    JudgeHtaccess,
    ListFolder,
    MakeFolder,
    PlaceImported,
    PlaceRestored,
    Read,
    ReadSitemap,
    Rename,
    RewriteConfiguration,
    Stat,
    UploadDiscard,
    UploadOpen,
    UploadPlace,
    UploadVerify,
    UploadWrite,
    Write,
    decode_request,
    encode,
)
from svc_webhost.confined.tree import Tree

_READERS: Final = 4
_STACK: Final = 1 << 20
_PARSING: Final = threading.Lock()

_Work = tuple[int, FileRequest, bytes]
_Answer = tuple[dict[str, Any], bytes]


def serve(root: int, link: socket.socket, identity: Identity, *, without_landlock: bool) -> None:
    """Confine this process and answer requests. First reports the version of Landlock, or why the process refuses to
    serve."""
    try:
        abi = confine(root, identity, without_landlock=without_landlock)
        tree = Tree(root)
        files.sweep(tree)
    except Exception as error:  # noqa: BLE001 - reported to the core, which writes the log
        link.sendall(encode({"number": 0, "failure": Failed.BROKEN, "message": str(error)}))
        return
    beside: SimpleQueue[_Work] = SimpleQueue()
    mutations: SimpleQueue[_Work] = SimpleQueue()
    long_ones: SimpleQueue[_Work] = SimpleQueue()
    sending = threading.Lock()
    threading.stack_size(_STACK)
    for queue in (mutations, long_ones, *[beside] * _READERS):
        threading.Thread(target=_work, args=(tree, queue, link, sending), daemon=True).start()
    start_no_processes()
    link.sendall(encode({"number": 0, "result": {"landlock": abi}}))
    incoming = link.makefile("rb", buffering=1 << 16)
    while (work := _next(incoming.read)) is not None:
        number, request, payload = work
        if isinstance(request, FileError):
            _send(link, sending, number, request)
        else:
            queue = long_ones if request.long else mutations if request.mutates else beside
            queue.put((number, request, payload))


def _next(read: Any) -> tuple[int, FileRequest | FileError, bytes] | None:
    lengths = read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    header_length, payload_length = LENGTHS.unpack(lengths)
    if header_length > MAX_HEADER or payload_length > MAX_PAYLOAD:
        return None
    text, payload = read(header_length), read(payload_length)
    if len(text) < header_length or len(payload) < payload_length:
        return None
    header = json.loads(text)
    try:
        return header["number"], decode_request(header), payload
    except FileError as failure:
        return header["number"], failure, b""


def _work(tree: Tree, queue: SimpleQueue[_Work], link: socket.socket, sending: threading.Lock) -> None:
    while True:
        number, request, payload = queue.get()
        try:
            # The lock comes first, so that a request that waits for other changes does not count as parsing yet.
            with _alone(tree, request), _parsing() if request.parses else nullcontext():
                outcome: _Answer | FileError = _handle(tree, request, payload)
        except FileError as failure:
            outcome = failure
        except Exception as error:  # noqa: BLE001 - a defect must affect only its own request
            outcome = FileError(Failed.BROKEN, f"The request could not be done: {type(error).__name__}: {error}.")
        _send(link, sending, number, outcome)


def _alone(tree: Tree, request: FileRequest) -> AbstractContextManager[object]:
    return tree.changing if request.mutates and not request.long else nullcontext()


@contextmanager
def _parsing() -> Iterator[None]:
    """Limit the time of parsing: SIGALRM, which has no handler, ends the process; the core reports that for all the
    process's requests."""
    with _PARSING:
        signal.alarm(PARSING_SECONDS)
        try:
            yield
        finally:
            signal.alarm(0)


def _send(link: socket.socket, sending: threading.Lock, number: int, outcome: _Answer | FileError) -> None:
    if isinstance(outcome, FileError):
        frame = encode({"number": number, "failure": outcome.code, "message": outcome.message})
    else:
        result, payload = outcome
        frame = encode({"number": number, "result": result}, len(payload)) + payload
    try:
        with sending:
            link.sendall(frame)
    except OSError:  # The core has ended, so nobody waits for the answer.
        os._exit(0)


def _handle(tree: Tree, request: FileRequest, payload: bytes) -> _Answer:
    match request:
        case ListFolder():
            return files.list_folder(tree, request)
        case Read():
            return files.read(tree, request)
        case Stat():
            return files.show(tree, request), b""
        case Write():
            return files.write(tree, request, payload), b""
        case MakeFolder():
            return files.make_folder(tree, request), b""
        case Rename():
            return files.rename(tree, request), b""
        case Delete():
            return files.delete(tree, request), b""
        case ChangeMode():
            return files.change_mode(tree, request), b""
        case Copy():
            return files.copy(tree, request), b""
        case Compress():
            return compress.compress(tree, request), b""
        case Extract():
            return extract.extract(tree, request), b""
        case UploadOpen():
            return uploads.open_upload(tree, request), b""
        case UploadWrite():
            return uploads.write_part(tree, request, payload), b""
        case UploadVerify():
            return uploads.verify(tree, request), b""
        case UploadPlace():
            return uploads.place(tree, request), b""
        case UploadDiscard():
            return uploads.discard(tree, request), b""
        case PlaceRestored():
            return files.place_restored(tree, request), b""
        case PlaceImported():
            return extract.place_imported(tree, request), b""
        case JudgeHtaccess():
            return judge.judge(tree, request, payload)
        case RewriteConfiguration():
            return configuration.rewrite(tree, request, payload), b""
        case ComparePages():
            return pages.compare(request, payload), b""
        case ReadSitemap():
            return pages.read_sitemap(request, payload)
        case FreeSpace():
            return files.free_space(tree), b""
    raise FileError(Failed.INVALID, "There is no such request.")
