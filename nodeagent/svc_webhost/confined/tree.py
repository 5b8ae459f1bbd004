"""A site's files. Every path is looked up beneath the descriptor of the site's root.

Descriptors are opened by `open_*` and closed by their `with`. Messages name paths as the caller wrote them.

To resolve a path and check that the result lies beneath the root would not do. The customer's own programs run
meanwhile, and can swap a folder for a link between the check and the use. openat2(2) with RESOLVE_BENEATH does both in
one call. From there on the code works with the descriptor of a folder and a name in it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from svc_webhost.confined import kernel
from svc_webhost.confined.protocol import TEMPORARY, Failed, FileError

# Linux's PATH_MAX and NAME_MAX. Beyond these the kernel refuses a path, with a message that does not name it.
MAX_PATH: Final = 4096
MAX_NAME: Final = 255
MAX_DEPTH: Final = 200
"""How many levels of folders are followed. Each level takes a descriptor, of which a helper has 1,024 (`confine`), and
two nested calls of `remove`, of which Python allows 1,000 by default."""
BLOCK: Final = 1 << 18

_FAILURES: Final = {
    errno.ENOENT: (Failed.NOT_FOUND, "There is nothing at {}."),
    errno.EEXIST: (Failed.EXISTS, "There is something at {} already."),
    errno.ENOTEMPTY: (Failed.EXISTS, "The folder {} is not empty."),
    errno.ENOTDIR: (Failed.CONFLICT, "A part of {} is not a folder."),
    errno.EISDIR: (Failed.CONFLICT, "{} is a folder."),
    # ENXIO: the file is a socket, or a pipe without a reader that was opened for writing.
    errno.ENXIO: (Failed.CONFLICT, "{} is not a file."),
    errno.ELOOP: (Failed.REFUSED, "{} is a link, or links form a loop."),
    # EXDEV, because of RESOLVE_BENEATH: the path contains "..", an absolute link, or a link to a folder above.
    errno.EXDEV: (Failed.REFUSED, "{} leads out of the site's folder."),
    errno.EACCES: (Failed.REFUSED, "The site's account has no permission for {}."),
    errno.EPERM: (Failed.REFUSED, "The site's account has no permission for {}."),
    errno.ENAMETOOLONG: (Failed.INVALID, "{} is too long."),
    errno.EINVAL: (Failed.INVALID, "{} cannot be placed there."),
    errno.ENOSPC: (Failed.NO_SPACE, "There is no space left for {}."),
    errno.EDQUOT: (Failed.NO_SPACE, "{} would be more than the plan leaves on the disk; nothing of it was placed."),
    errno.EFBIG: (Failed.NO_SPACE, "{} would be larger than a file may be."),
    errno.EMFILE: (Failed.INVALID, "Folders in {} are nested too deeply."),
}


def failure_of(error: OSError, path: str) -> FileError:
    code, message = _FAILURES.get(error.errno or 0, (Failed.BROKEN, "{} could not be accessed: " + str(error.strerror)))
    return FileError(code, message.format(path or "the site's folder"))


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """An OSError about `path` becomes a `FileError` that names it."""
    try:
        yield
    except OSError as error:
        raise failure_of(error, path) from error


@contextmanager
def held(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def parts(path: str) -> list[bytes]:
    """The names in a path; none for the root. Raises `FileError`."""
    # This does not keep paths beneath the root; openat2(2) does. It gives each path a single form, which messages, the
    # audit and the refusal of the temporary folder (`open_parent`) need.
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise FileError(Failed.INVALID, "A path has a character that no name can have.") from None
    if not raw:
        return []
    names = raw.split(b"/")
    if len(raw) > MAX_PATH or any(len(name) > MAX_NAME for name in names):
        raise FileError(Failed.INVALID, "A path is too long.")
    if b"\0" in raw or any(name in (b"", b".", b"..") for name in names):
        raise FileError(Failed.INVALID, f"{path} is not a path in the site's folder.")
    return names


def is_foreign(status: os.stat_result) -> bool:
    """Whether this is a hard link to another account's file. Through such a link, the site could make the service show
    or change that file."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and status.st_uid != os.geteuid()


class Tree:
    def __init__(self, root: int) -> None:
        self.root = root
        self.changing = threading.Lock()
        """Held while anything changes that other requests can see of the site."""

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        with translate_errors(path):
            return kernel.open_beneath(self.root, b"/".join(parts(path)) or b".", flags, mode)

    def open_folder(self, path: str) -> int:
        return self.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def open_parent(self, path: str) -> tuple[int, bytes]:
        """The folder that holds `path`, and the name in it. Refuses the temporary folder."""
        names = parts(path)
        if not names:
            raise FileError(Failed.INVALID, "The site's folder itself is not changed.")
        if names[0] == TEMPORARY:
            raise FileError(Failed.REFUSED, f"{os.fsdecode(TEMPORARY)} is reserved for unfinished files.")
        with translate_errors(path):
            folder = kernel.open_beneath(self.root, b"/".join(names[:-1]) or b".", os.O_RDONLY | os.O_DIRECTORY)
        return folder, names[-1]

    def open_file(self, path: str, flags: int = os.O_RDONLY) -> int:
        """A regular file that belongs to the site's account."""
        # Opening a pipe would wait for its other end, which a customer may never open. With O_NONBLOCK the pipe is
        # opened at once, and then refused because it is no regular file. The type is checked after the open, on the
        # descriptor, because the name could be exchanged in between.
        descriptor = self.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            check_file(os.fstat(descriptor), path)
        except FileError:
            os.close(descriptor)
            raise
        return descriptor

    @contextmanager
    def temporary(self) -> Iterator[int]:
        """The temporary folder, created if it does not exist."""
        with translate_errors(""), suppress(FileExistsError):
            os.mkdir(TEMPORARY, 0o700, dir_fd=self.root)
        # Opened without following links: the customer may have replaced the folder by a link to another folder of the
        # site.
        with translate_errors(os.fsdecode(TEMPORARY)):
            folder = kernel.open_beneath(self.root, TEMPORARY, os.O_RDONLY | os.O_DIRECTORY, follow=False)
        with held(folder):
            yield folder

    def move(self, path: str, to: str, *, replace: bool) -> None:
        """Move by rename(2): at every moment the entry has exactly one of the two names."""
        source, old = self.open_parent(path)
        with held(source):
            target, new = self.open_parent(to)
            with held(target):
                self._movable(source, old, path)
                with translate_errors(to):
                    kernel.rename(source, old, target, new, replace=replace)

    def discard(self, path: str) -> bytes:
        """Move what is at `path` out of sight at once. Returns its name in the temporary folder, for `remove`."""
        folder, name = self.open_parent(path)
        with held(folder), self.temporary() as temporary:
            self._movable(folder, name, path)
            gone = b"gone-" + secrets.token_hex(8).encode()
            with translate_errors(path):
                kernel.rename(folder, name, temporary, gone, replace=False)
            return gone

    def remove_in_place(self, path: str) -> None:
        """Remove it where it is. Others see it half removed meanwhile."""
        folder, name = self.open_parent(path)
        with held(folder), translate_errors(path):
            remove(folder, name)

    def _movable(self, folder: int, name: bytes, path: str) -> None:
        """Makes a folder of the site writable: rename(2) to another parent changes the folder's "..", which requires
        that."""
        with translate_errors(path):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWUSR:
                set_mode(folder, name, stat.S_IMODE(found.st_mode) & 0o1777 | stat.S_IRWXU)


def check_file(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileError(Failed.CONFLICT, f"{path} is a folder.")
    if not stat.S_ISREG(status.st_mode):
        raise FileError(Failed.CONFLICT, f"{path} is not a file.")
    if is_foreign(status):
        raise FileError(Failed.REFUSED, f"{path} is a hard link to a file that is not the site's own.")


def set_mode(folder: int, name: bytes, mode: int) -> None:
    """Set the mode of the entry `name` itself, and never of the target of a link: Landlock does not restrict
    chmod(2)."""
    # Changed through /proc: fchmod(2) refuses an O_PATH descriptor, and fchmodat2(2), which can avoid following links,
    # exists only from Linux 6.6 on.
    with held(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as descriptor:
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        os.chmod(f"/proc/self/fd/{descriptor}", mode)


def remove(folder: int, name: bytes) -> None:
    """Remove a file, a link, or a folder with its content from `folder`. Links are never followed. However deep folders
    lie, only some `MAX_DEPTH` descriptors are held: a folder that lies deeper is first moved up into `folder`."""
    left = [name]
    while left:
        _remove(folder, left.pop(), folder, left, 0)


def _remove(folder: int, name: bytes, top: int, left: list[bytes], depth: int) -> None:
    # Suppressed at each level and not around the whole removal: if a name vanishes meanwhile (because of another
    # removal or a program of the customer), only this name is skipped, and its siblings are still removed.
    with suppress(FileNotFoundError):
        _remove_what_is_there(folder, name, top, left, depth)


def _remove_what_is_there(folder: int, name: bytes, top: int, left: list[bytes], depth: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
        return
    except (IsADirectoryError, PermissionError):
        # For a folder, Linux returns EISDIR and POSIX EPERM. For a file, EACCES is a real refusal, so it is raised.
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
    if depth == MAX_DEPTH:
        # The depth of the moved folder counts from zero again, beneath `top`. Its name is random, because the customer
        # may have used any other name.
        moved = b"deep-" + secrets.token_hex(8).encode()
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=top)
        left.append(moved)
        return
    with held(_own_folder(folder, name)) as inner:
        for entry in os.listdir(inner):
            _remove(inner, os.fsencode(entry), top, left, depth + 1)
    os.rmdir(name, dir_fd=folder)


def _own_folder(folder: int, name: bytes) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        # The site's own folders may have mode 0500 or 0000; without this nothing in them could be removed. The mode of
        # others' folders is not changed, and root needs no mode.
        if found.st_mode & stat.S_IRWXU != stat.S_IRWXU and found.st_uid == os.geteuid():
            set_mode(folder, name, stat.S_IRWXU)
    except FileNotFoundError:
        pass
    return kernel.open_beneath(folder, name, flags, follow=False)
