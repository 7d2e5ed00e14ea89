"""Files that are whole or not there: write beside, sync, rename."""

from __future__ import annotations

import errno
import os


def write_atomic(path: str, text: str, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old or the new text, never a part.

    durable: sync file and directory, so that it survives a power cut. Raises OSError.
    """
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise OSError(errno.EILSEQ, "text that no file can hold", path) from exc
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{os.getpid()}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(fd, mode)
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    if durable:
        dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(dir_fd)
        finally:
            os.close(dir_fd)


def make_private_dir(path: str, mode: int = 0o700) -> None:
    """Make a directory (and its parents, 0755) and give it ``mode``. Raises OSError."""
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, mode=0o755, exist_ok=True)
    try:
        os.mkdir(path, mode)  # never wider than it shall be, not even for a moment
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "is not a directory", path) from None
    if os.stat(path).st_mode & 0o777 != mode:
        os.chmod(path, mode)
