"""Errors of annotation and grading, with the HTTP status that a page receives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from openafm.core.errors import OpenAFMError


class AnnotationError(OpenAFMError):
    """A request, a project or an import is wrong.

    Args:
        status: the HTTP status of the reply.
        code: a word that programs compare, such as `not_found`.
        retry_after: seconds after which a retry can succeed.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Run a block that writes to a folder; errors of the system become an error with advice.

    Raises:
        AnnotationError: the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise AnnotationError(
            f"{folder} cannot be written: {error.strerror or error}; choose a folder that you can write, or change its "
            "permissions"
        ) from error


def not_found(what: str) -> AnnotationError:
    """Return an error of status 404."""
    return AnnotationError(f"no {what}; reload the page", status=404, code="not_found")


def forbidden(message: str) -> AnnotationError:
    """Return an error of status 403."""
    return AnnotationError(message, status=403, code="forbidden")
