"""Pages of words that cannot be guessed, for learning to read."""

from openafm.data.drawing.words.config import WordsConfig

__all__ = ["WordsConfig"]
