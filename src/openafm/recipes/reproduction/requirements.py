"""Optional parts of an installation: whether they are there, and how to add them."""

from __future__ import annotations

import importlib.util
import shutil

_PROGRAMS = {
    "chromium": ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
}
_ADVICE = {
    "program:chromium": "Chromium; install it with: apt install chromium-headless-shell",
    "program:bwrap": "bubblewrap; install it with: apt install bubblewrap",
    "program:tesseract": "tesseract; install it with: apt install tesseract-ocr",
    "module:playwright": "Playwright; install it with: pip install 'openafm[render]'",
    "module:ray": "Ray; install it with: pip install 'openafm[ray]'",
    "module:apple_fm_sdk": "Apple's SDK; install it with: openafm apple-sdk install",
    "module:fastapi": "FastAPI; install it with: pip install 'openafm[annotate]'",
    "module:sqlalchemy": "SQLAlchemy; install it with: pip install 'openafm[annotate]'",
    "module:fastwarc": "FastWARC; install it with: pip install 'openafm[data]'",
    "module:selectolax": "selectolax; install it with: pip install 'openafm[data]'",
    "module:pyarrow": "PyArrow; install it with: pip install 'openafm[data]'",
    "module:PIL": "Pillow; install it with: pip install 'openafm[images]'",
}


def missing_parts(requires: tuple[str, ...]) -> list[str]:
    """Return the advice for each of `program:NAME` and `module:NAME` that is not installed."""
    return [_ADVICE.get(each, each.replace(":", " ")) for each in requires if not _is_there(each)]


def _is_there(requirement: str) -> bool:
    kind, name = requirement.split(":")
    if kind == "module":
        return importlib.util.find_spec(name) is not None
    return any(shutil.which(program) is not None for program in _PROGRAMS.get(name, (name,)))
