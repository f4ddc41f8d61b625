"""The IFEval checkers of lm-evaluation-harness, with the sentence model and the seed that ours use.

Without NLTK's punkt_tab they cannot run at all; then both sides use the same tokenizer of common abbreviations. Where
the published program draws random values, both sides are fixed: the seed of the language detector, and the letter to count,
which is the character that the prompt names also where it is not one of a to z.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def peer() -> Any:
    """Return the module `lm_eval.tasks.ifeval.utils`."""
    import langdetect
    import nltk
    import nltk.tokenize

    from openafm.evaluation.tasks.ifeval_rules import has_published_sentences, sentence_tokenizer

    langdetect.DetectorFactory.seed = 0
    if not has_published_sentences():
        nltk.download = lambda *_, **__: False  # the import below tries to reach the network
        nltk.tokenize._get_punkt_tokenizer = lambda language="english": sentence_tokenizer()
    from lm_eval.tasks.ifeval import instructions, instructions_util, utils

    checker = instructions.LetterFrequencyChecker
    described = checker.build_description

    def with_given_letter(self: Any, *, letter: str | None = None, **arguments: Any) -> str:
        text = str(described(self, letter=letter, **arguments))
        self._letter = (letter or self._letter).strip().lower()
        return text

    checker.build_description = with_given_letter
    if not has_published_sentences():
        instructions_util._get_sentence_tokenizer = sentence_tokenizer
    return utils
