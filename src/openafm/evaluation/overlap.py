"""ROUGE-L (Lin, 2004): F1 of the longest common subsequence of two texts.

Shapes: P tokens of the prediction, R tokens of the reference.
"""

from __future__ import annotations

import re
import unicodedata

# A word, or one character in scripts without spaces between words.
_CHARACTERS = "\u3040-\u30ff\u3400-\u9fff"
_TOKEN = re.compile(rf"[{_CHARACTERS}]|(?:(?![{_CHARACTERS}])\w)+")


def rouge_l(prediction: str, reference: str) -> float:
    """Return 2 L / (P + R), from 0 to 1, with L the length of the longest common subsequence; 1 if both texts have no words.

    Case and punctuation are ignored.
    """
    predicted_P, reference_R = _tokens(prediction), _tokens(reference)
    if not predicted_P or not reference_R:
        return float(predicted_P == reference_R)
    return 2 * _longest_common_subsequence(predicted_P, reference_R) / (len(predicted_P) + len(reference_R))


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def _longest_common_subsequence(left: list[str], right: list[str]) -> int:
    lengths = [0] * (len(right) + 1)
    for token in left:
        diagonal = 0
        for index, other in enumerate(right, start=1):
            above = lengths[index]
            lengths[index] = diagonal + 1 if token == other else max(above, lengths[index - 1])
            diagonal = above
    return lengths[-1]
