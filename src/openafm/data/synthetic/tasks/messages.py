"""Event extraction: a message in, its title, date, time and location out.

Title and location are spans of the message, letter by letter; date and time are normalized. Relative days are resolved
against the reference day that the instructions state.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openafm.data.synthetic.calendar import DATE_SHARES, Phrase
from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of, value_of
from openafm.data.synthetic.styles import restyle
from openafm.data.synthetic.text_files.frames import LanguageFrames
from openafm.data.synthetic.text_files.source_text import Frame, Slot

_OPENER_SHARE, _CLOSER_SHARE = 0.2, 0.15
_DATE_SLOTS = frozenset({"when", "when_bare", "date", "date_bare"})
_TIME_SLOTS = frozenset({"when", "when_bare", "time", "time_bare"})
_PLACE_SLOTS = frozenset({"place", "place_bare"})


@dataclass(frozen=True, kw_only=True)
class StatedShares:
    """Shares of the messages that state a field, where their frames leave it open."""

    date: float = 0.85
    time: float = 0.75
    place: float = 0.6


STATED = StatedShares()


@dataclass(frozen=True)
class Message:
    """A message and the event in it; no event is None."""

    text: str
    event: dict[str, str] | None


def draw_message(
    rng: random.Random,
    frames: LanguageFrames,
    today: datetime.date,
    *,
    open_titles: float = 0.0,
    date_shares: Mapping[str, float] = DATE_SHARES,
    stated: StatedShares = STATED,
    events: Sequence[Frame] = (),
) -> Message:
    """A message that announces one event, of the frames `events` or all. A share `open_titles` of titles are any words."""
    frame = rng.choice(events or frames.events)
    values = _EventValues(rng, frames, today, frame, date_shares, stated)
    if open_titles and rng.random() < open_titles:
        values.open_title = frames.draw_open_title(rng)
    pieces = list(render(frame, rng, values, keep=values.keeps, language=frames.language))
    pieces = _surrounded(rng, frames, pieces, today)
    pieces = restyle(rng, pieces, frames.language)
    event = {"title": value_of(pieces, "title") or ""}
    if values.wrote & _DATE_SLOTS and values.date:
        event["date"] = values.date.value
    if values.wrote & _TIME_SLOTS and values.time:
        event["time"] = values.time.value
    if (place := value_of(pieces, "place")) is not None:
        event["location"] = place
    return Message(text_of(pieces), event)


def draw_other_message(rng: random.Random, frames: LanguageFrames, today: datetime.date) -> Message:
    """A message that announces no event."""
    values = Distractors(rng, frames, today)
    pieces = list(render(rng.choice(frames.others), rng, values, language=frames.language))
    return Message(text_of(restyle(rng, _surrounded(rng, frames, pieces, today), frames.language)), None)


class Distractors:
    """Values of the slots that belong to no event, drawn on first use."""

    def __init__(self, rng: random.Random, frames: LanguageFrames, today: datetime.date) -> None:
        self._rng, self._frames, self._today = rng, frames, today
        self._drawn: dict[str, str] = {}

    def __call__(self, slot: Slot) -> Pieces:
        return (Piece(self.value(slot.name)),)

    def value(self, name: str) -> str:
        """The value of a slot: the same for the same name, others for `person` and `person2`."""
        if name not in self._drawn:
            kind = name.rstrip("0123456789")
            for _ in range(8):
                self._drawn[name] = value = self._draw(kind)
                if list(self._drawn.values()).count(value) == 1:
                    break
        return self._drawn[name]

    def _draw(self, kind: str) -> str:
        if kind in _PLACE_SLOTS:
            pieces, bare = self._frames.draw_place(self._rng)
            return bare if kind == "place_bare" else text_of(pieces)
        return self._frames.draw_distractor(self._rng, kind, self._today)


class _EventValues(Distractors):
    """Values of the slots of an event frame; `wrote` collects the names of the fields that were written."""

    def __init__(
        self,
        rng: random.Random,
        frames: LanguageFrames,
        today: datetime.date,
        frame: Frame,
        date_shares: Mapping[str, float],
        stated: StatedShares,
    ) -> None:
        super().__init__(rng, frames, today)
        needed = frame.required
        has_date = bool(needed & {"date", "date_bare"}) or rng.random() < stated.date
        has_time = bool(needed & {"time", "time_bare"}) or rng.random() < stated.time
        if needed & {"when", "when_bare"} and not has_date and not has_time:
            has_date = True
        is_evening = has_time and "tonight" in frames.calendar.dates and rng.random() < 0.05
        self.time: Phrase | None = frames.calendar.draw_time(rng, evening=is_evening) if has_time else None
        self.date: Phrase | None = None
        if has_date:
            self.date = frames.calendar.draw_date(rng, today, evening=is_evening, shares=date_shares)
        self._has_place = bool(needed & _PLACE_SLOTS) or rng.random() < stated.place
        self._fields: dict[str, Pieces] = {}
        self.open_title = ""
        self.wrote: set[str] = set()

    def keeps(self, names: frozenset[str]) -> bool:
        """Whether an optional group is written: if it has every field that its slots name."""
        if names & {"date", "date_bare"} and not self.date:
            return False
        if names & {"time", "time_bare"} and not self.time:
            return False
        if names & {"when", "when_bare"} and not (self.date or self.time):
            return False
        if names & (_PLACE_SLOTS | {"place"}) and not self._has_place:
            return False
        return bool(names & (_DATE_SLOTS | _TIME_SLOTS | _PLACE_SLOTS)) or self._rng.random() < 0.5

    def __call__(self, slot: Slot) -> Pieces:
        name = slot.name
        if name == "title":
            before, title = self._frames.draw_title(self._rng, slot.form)
            title = self.open_title or title
            return (Piece(before), Piece(title, "title")) if before else (Piece(title, "title"),)
        if name in _PLACE_SLOTS:
            pieces, bare = self._frames.draw_place(self._rng)
            if name == "place_bare":
                return (Piece(bare, "place"),)
            return tuple(Piece(piece.text, "place" if piece.field else "") for piece in pieces)
        if name in _DATE_SLOTS | _TIME_SLOTS:
            self.wrote.add(name)
            if name not in self._fields:
                self._fields[name] = (Piece(self._when(name)),)
            return self._fields[name]
        return super().__call__(slot)

    def _when(self, name: str) -> str:
        date, time = self.date, self.time
        if name.startswith("date") and date:
            return date.bare if name == "date_bare" else date.text
        if name.startswith("time") and time:
            return time.bare if name == "time_bare" else time.text
        is_bare = name == "when_bare"
        if date and time:
            return self._frames.calendar.write_when(self._rng, date, time, bare=is_bare)
        phrase = date or time
        assert phrase is not None
        return phrase.bare if is_bare else phrase.text


def _surrounded(rng: random.Random, frames: LanguageFrames, pieces: list[Piece], today: datetime.date) -> list[Piece]:
    """A message of one line with a sentence before or after it, in some cases."""
    if any("\n" in piece.text for piece in pieces):
        return pieces
    space = "" if frames.language in ("zh-Hans", "zh-Hant", "ja") else " "
    gap = Piece(rng.choice((space, space, "\n")))
    if rng.random() < _OPENER_SHARE:
        opener = render(rng.choice(frames.openers), rng, Distractors(rng, frames, today), language=frames.language)
        pieces = [*opener, gap, *pieces]
    if rng.random() < _CLOSER_SHARE:
        closer = render(rng.choice(frames.closers), rng, Distractors(rng, frames, today), language=frames.language)
        pieces = [*pieces, gap, *closer]
    return pieces
