"""A trace as one HTML page: figures, lanes, tree and inspector. It holds its data and loads nothing."""

from __future__ import annotations

import json
from importlib.resources import files

from openafm.framework.profiling.spans import Trace


def page_text(trace: Trace) -> str:
    """Return the page as HTML."""
    data = json.dumps(trace.to_dict(), ensure_ascii=True).replace("<", "\\u003c")  # no text can end the script element
    return files("openafm.framework.profiling").joinpath("page.html").read_text("utf-8").replace("$TRACE", data, 1)
