"""`FolderError`: the server's user cannot use one of its folders, as with a volume of a container that belongs to root."""

from __future__ import annotations

import errno
import os

from everlong_server.settings import Settings

_UNUSABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC}


class FolderError(Exception):
    """A file cannot be read or written. The message names the file, the reason and what helps."""


def explain(error: BaseException, settings: Settings) -> BaseException:
    """Return the error to report for `error`: a `FolderError` if it is about the rights to a file or about space, else `error`."""
    if not isinstance(error, OSError) or error.errno not in _UNUSABLE or error.filename is None:
        return error
    if error.errno == errno.ENOSPC:
        return FolderError(f"{error.filename}: {error.strerror}. Free some space, or use another folder")
    folders = f"{settings.data_dir} (EVERLONG_DATA_DIR) and {settings.models_dir} (EVERLONG_MODELS_DIR)"
    return FolderError(
        f"{error.filename}: {error.strerror}. The server runs as user {os.geteuid()}, who must be able to read and write {folders}"
    )
