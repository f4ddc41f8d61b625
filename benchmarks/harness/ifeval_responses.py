"""Generated responses to IFEval's prompts: some follow the instructions, some nearly, some not at all."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

_SENTENCES = (
    "The weather in Oslo is mild today.",
    "Dr. Smith went to St. Ives at 5 p.m. on Monday!",
    "It costs 3.50 dollars, e.g. in the U.S.",
    "Why not? Because we can.",
    "das ist ein deutscher Satz über das Wetter.",
    "Une phrase en français, tout simplement.",
    "これは日本語の文です。",
    "यह हिन्दी में एक वाक्य है।",
    "THIS IS LOUD.",
    'He said: "Stop!" and left...',
    "It's a well-known fact (see [1]).",
)
_FRAGMENTS = (
    *(
        "<<A title>>",
        "<< >>",
        "* a point",
        "- a point",
        "** not a point",
        "***",
        "******",
        "*highlighted*",
        "**bold**",
        "**",
    ),
    *("[name]", "[]", "P.S. more", "p. p. s. more", "P.P.S more", "Section 1", "SECTION 2", "My answer is maybe."),
    *('"quoted"', "```json\n{}\n```", "\n\n", "\n", "\n\n\n", "", "  ", "Is there anything else I can help with?"),
)


def responses(row: Mapping[str, Any], count: int, seed: int) -> list[str]:
    """Return responses to a prompt, the first of which tries to follow all its instructions."""
    generator = random.Random(seed)
    found = [_trying(row, generator, 1.0)]
    while len(found) < count:
        found.append(_trying(row, generator, generator.choice((0.0, 0.5, 0.9))))
    return found


def _trying(row: Mapping[str, Any], generator: random.Random, share: float) -> str:
    parts = [
        generator.choice(_SENTENCES if generator.random() < 0.7 else _FRAGMENTS) for _ in range(generator.randint(0, 12))
    ]
    text = generator.choice((" ", "\n", "\n\n")).join(parts)
    for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
        if generator.random() < share:
            text = _followed(name, {key: value for key, value in given.items() if value is not None}, text, generator)
    return text


def _followed(name: str, given: Mapping[str, Any], text: str, generator: random.Random) -> str:
    """Return the text with the instruction followed, or missed by one."""
    off = generator.choice((0, 0, 0, 1, -1))
    match name:
        case "keywords:existence":
            return f"{text} {' '.join(given['keywords'])}"
        case "keywords:frequency":
            return text + f" {given['keyword']}" * max(0, given["frequency"] + off)
        case "keywords:forbidden_words":
            return text if off == 0 else f"{text} {given['forbidden_words'][0]}{'s' if off > 0 else ''}."
        case "keywords:letter_frequency":
            return text + given["letter"] * max(0, given["let_frequency"] + off)
        case "length_constraints:number_sentences":
            return " ".join(generator.choice(_SENTENCES) for _ in range(max(1, given["num_sentences"] + off)))
        case "length_constraints:number_paragraphs":
            return generator.choice(("***", " *** ", "\n***\n", "\n\n* * *\n\n")).join(
                [text or "a"] * max(1, given["num_paragraphs"] + off)
            )
        case "length_constraints:number_words":
            return " ".join(
                ["word", "it's", "well-known"][index % 3] for index in range(max(0, given["num_words"] + off * 3))
            )
        case "length_constraints:nth_paragraph_first_word":
            paragraphs = ["A paragraph."] * max(1, given["num_paragraphs"] + off)
            place = min(given["nth_paragraph"], len(paragraphs)) - 1
            paragraphs[place] = (
                generator.choice(("", '"', "'", "*")) + given["first_word"].title() + generator.choice((" it", ", it", "'s"))
            )
            return generator.choice(("\n\n", "\n\n", "\n\n\n")).join(paragraphs)
        case "detectable_content:number_placeholders":
            return text + " [address]" * max(0, given["num_placeholders"] + off)
        case "detectable_content:postscript":
            return f"{text}\n{given['postscript_marker']} more"
        case "detectable_format:number_bullet_lists":
            return text + "".join(
                f"\n{generator.choice(('*', '-', '  *', '**'))} point" for _ in range(max(0, given["num_bullets"] + off))
            )
        case "detectable_format:number_highlighted_sections":
            return text + " *part*" * max(0, given["num_highlights"] + off)
        case "detectable_format:multiple_sections":
            mark = given["section_spliter"]
            return "\n".join(f"{mark} {number + 1}\ntext" for number in range(max(0, given["num_sections"] + off)))
        case "detectable_format:json_format":
            value = json.dumps({"text": text})
            return generator.choice((value, f"```json\n{value}\n```", f"```JSON\n{value}```", value + "}"))
        case "combination:two_responses":
            return generator.choice(
                (f"{text} a ****** {text} b", "a******a", "a******b******", "******a******b", "a ****** ****** b")
            )
        case "combination:repeat_prompt":
            return generator.choice(("", " ", '"')) + given["prompt_to_repeat"] + "\n" + text
        case "startend:end_checker":
            return text + generator.choice(("", " ", "\n")) + given["end_phrase"] + generator.choice(("", '"', " ", "."))
        case "startend:quotation":
            return generator.choice((f'"{text}"', f'"{text}', f" “{text}” ", '"'))
        case "change_case:capital_word_frequency":
            return text + " WELL-KNOWN USA" * max(0, given.get("capital_frequency", 0) + off)
        case "change_case:english_capital":
            return text.upper()
        case "change_case:english_lowercase":
            return text.lower()
        case "punctuation:no_comma":
            return text.replace(",", "")
    return f"{generator.choice(_FRAGMENTS)}\n{text}"
