"""The playground: a page of plain HTML and ES modules, served from the package."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

from openafm.serving.errors import ApiError

router = APIRouter(include_in_schema=False)

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def _read() -> dict[str, tuple[bytes, str]]:
    """Return content and media type of the page's files by name."""
    found = {file.name: file.read_bytes() for file in files("openafm.serving").joinpath("playground").iterdir()}
    return {name: (data, f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8") for name, data in found.items()}


_FILES = _read()


@router.get("/")
async def page() -> Response:
    """Return the page."""
    return _reply("index.html")


@router.get("/playground/{name}")
async def file(name: str) -> Response:
    """Return a file of the page."""
    return _reply(name)


def _reply(name: str) -> Response:
    if name not in _FILES:
        raise ApiError(404, "the playground has no such file", code="not_found")
    data, media_type = _FILES[name]
    return Response(data, media_type=media_type)
