"""Hand-written texts of flyers and signs in the sixteen languages, by split (`posters.txt`)."""

from __future__ import annotations

import functools
import random
import string
from collections.abc import Mapping

from openafm.data.synthetic.calendar import CalendarPhrases
from openafm.data.synthetic.languages import Split, source_file
from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.data.synthetic.text_files.source_text import Frame, Slot, parse_frame, read_sections
from openafm.data.synthetic.words import questions_of, split_of

# Few lines each, which hold no names: both splits use all of them.
_SHARED = frozenset({"date", "time", "place", "line", "free", "absent", "caption", "hours", "sign"})


class PosterTexts:
    """The frames of one language and split, filled with words of that split."""

    def __init__(self, language: str, split: Split) -> None:
        self.language = language
        self._words: LanguageFrames = frames_of(language, split)
        self._frames: dict[str, tuple[Frame, ...]] = {}
        for section in read_sections(source_file(language, "posters.txt")):
            kept = set(split_of((line.text for line in section.lines), split))
            if section.name.startswith("ask."):
                lines = list(questions_of(section.lines, split))
            else:
                is_shared = section.name in _SHARED
                lines = [line for line in section.lines if is_shared or line.text in kept]
            self._frames[section.name] = tuple(parse_frame(line, line.text.replace("=>", r"=\>")) for line in lines)

    @property
    def calendar(self) -> CalendarPhrases:
        """How the language writes dates and times."""
        return self._words.calendar

    @property
    def frames(self) -> LanguageFrames:
        """The frames of the text corpus in this language and split."""
        return self._words

    def section(self, name: str) -> tuple[Frame, ...]:
        """The lines of a section."""
        return self._frames[name]

    def draw(self, rng: random.Random, section: str, values: Mapping[str, str] | None = None) -> str:
        """Return a line of a section. Other slots take words; a group is kept if its slots have values."""
        return self._fill(rng, rng.choice(self._frames[section]), values)

    def draw_several(self, rng: random.Random, section: str, count: int, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return different lines of a section."""
        frames = self._frames[section]
        return tuple(self._fill(rng, frame, values) for frame in rng.sample(frames, min(count, len(frames))))

    def _fill(self, rng: random.Random, frame: Frame, values: Mapping[str, str] | None) -> str:
        drawn: dict[str, str] = dict(values or {})

        def resolve(slot: Slot) -> Pieces:
            if slot.name not in drawn:
                drawn[slot.name] = self._words.draw_word(rng, slot.name.rstrip(string.digits))
            return (Piece(drawn[slot.name]),)

        def keep(names: frozenset[str]) -> bool:
            return values is not None and names <= values.keys()

        return text_of(render(frame, rng, resolve, keep=keep, language=self.language)).strip()


@functools.cache
def poster_texts(language: str, split: Split) -> PosterTexts:
    """The texts of a language and split, read once."""
    return PosterTexts(language, split)
