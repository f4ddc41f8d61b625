"""ROUGE-L: how much of two texts runs in the same order (Lin, 2004). The F1 of precision and recall, words and their order.

Shapes: P tokens of the prediction, R tokens of the reference.
"""

from __future__ import annotations

import re
import unicodedata

# A word; but one character of the scripts that put no spaces between words.
_CHARACTERS = "\u3040-\u30ff\u3400-\u9fff"
_TOKEN = re.compile(rf"[{_CHARACTERS}]|(?:(?![{_CHARACTERS}])\w)+")


def rouge_l(prediction: str, reference: str) -> float:
    """2 L / (P + R), L being the longest common subsequence; from 0 to 1, and 1 where both have no word at all.

    Case and punctuation do not count.
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
