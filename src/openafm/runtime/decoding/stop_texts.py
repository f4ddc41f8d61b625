"""The end of an answer at one of several texts."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Cut a streamed text before the first of the stop texts.

    Args:
        stops: the stop texts; empty ones are ignored.

    Attributes:
        found: the stop text that ended the text; None so far.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(filter(None, stops))
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """Append text and return what can be shown: an end that may become a stop text is held back."""
        if self.found is not None or not self._stops:
            return "" if self.found is not None else piece
        text = self._held + piece
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        num_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """Return the rest of the text."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    return next((length for length in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-length:])), 0)
