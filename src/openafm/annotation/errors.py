"""Errors of annotation and grading, with the HTTP status that a page receives."""

from __future__ import annotations

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


def not_found(what: str) -> AnnotationError:
    """Return an error of status 404."""
    return AnnotationError(f"no {what}; reload the page", status=404, code="not_found")


def forbidden(message: str) -> AnnotationError:
    """Return an error of status 403."""
    return AnnotationError(message, status=403, code="forbidden")
