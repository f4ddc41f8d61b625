"""Questions about data tables, with answers computed from the data (`ask`) and again from text alone (`check_answers`)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from openafm.data.drawing.base import Split
from openafm.data.drawing.data_tables import DataTable, draw_names
from openafm.data.drawing.phrases import absence, question, read_number, slots_of, write_number
from openafm.data.images.documents import Question

_REFUSALS = 0.3
_OF_DATA = ("lookup", "max", "min", "sum", "difference", "compare", "above")


def ask(
    rng: random.Random,
    language: str,
    split: Split,
    table: DataTable,
    *,
    group: str,
    count: int = 4,
    keys: Sequence[str] | None = None,
    only_column: bool = False,
) -> tuple[Question, ...]:
    """Return questions about a table, of kinds `group.lookup`, `group.max`, ..., and at times one about a missing row.

    Args:
        keys: the questions about data to choose from; None for all. Exact numbers need a chart that writes them.
        only_column: the image shows one column without its name, so that questions leave it out where they can.
    """
    made: list[Question] = []
    choice = [key for key in keys or _OF_DATA if table.is_total or key != "sum"]
    for key in rng.sample(choice, min(count, len(choice))):
        made += _ask_of_data(rng, language, split, table, key, only_column)
    if table.title:
        made.append(Question(question=question(language, split, "title"), answer=table.title, kind="title"))
    made.append(Question(question=question(language, split, "rows"), answer=str(len(table.rows)), kind="rows"))
    if len(table.columns) > 1 and table.measure:
        made.append(Question(question=question(language, split, "columns"), answer=str(len(table.columns)), kind="columns"))
    if rng.random() < _REFUSALS:
        made += _ask_absent(rng, language, split, table)
    made.append(
        Question(question=question(language, split, "transcribe_table"), answer=table.markdown(language), kind="table")
    )
    return tuple(Question(question=each.question, answer=each.answer, kind=f"{group}.{each.kind}") for each in made)


def _ask_of_data(
    rng: random.Random, language: str, split: Split, table: DataTable, key: str, only_column: bool
) -> Iterator[Question]:
    index = rng.randrange(len(table.columns))
    values, column = table.column(index), table.columns[index]
    first, second = rng.sample(range(len(table.rows)), 2)
    row, other = table.rows[first], table.rows[second]

    def made(text: str, answer: str) -> Question:
        return Question(question=text, answer=answer, kind=key)

    match key:
        case "lookup" if only_column:
            yield made(question(language, split, "lookup_only", row=row), write_number(language, values[first]))
        case "lookup":
            yield made(question(language, split, key, row=row, column=column), write_number(language, values[first]))
        case "max" | "min":
            best = max(values) if key == "max" else min(values)
            if values.count(best) == 1:
                yield made(question(language, split, key, column=column), table.rows[values.index(best)])
        case "sum":
            yield made(question(language, split, key, column=column), write_number(language, sum(values, Decimal(0))))
        case "difference":
            text = question(language, split, key, row=row, other=other, column=column)
            yield made(text, write_number(language, abs(values[first] - values[second])))
        case "compare":
            if values[first] != values[second]:
                text = question(language, split, key, row=row, other=other, column=column)
                yield made(text, row if values[first] > values[second] else other)
        case "above":
            ordered = sorted(set(values))
            if len(ordered) > 1:
                at = rng.randrange(len(ordered) - 1)
                middle = (ordered[at] + ordered[at + 1]) / 2
                limit = middle.quantize(ordered[at])
                if ordered[at] <= limit < ordered[at + 1]:
                    text = question(language, split, key, column=column, number=write_number(language, limit))
                    yield made(text, str(sum(value > limit for value in values)))


def _ask_absent(rng: random.Random, language: str, split: Split, table: DataTable) -> Iterator[Question]:
    known = {row.casefold() for row in table.rows} | {column.casefold() for column in table.columns}
    for name in draw_names(rng, language, split, rng.choice(("city", "product", "person")), 4, 18):
        if name.casefold() not in known:
            text = question(language, split, "lookup_only", row=name)
            yield Question(question=text, answer=absence(language, name), kind="absent")
            return


def check_answers(language: str, transcription: str, questions: Sequence[Question]) -> list[str]:
    """Return the errors in answers about a table, recomputed from its Markdown and the words of each question."""
    title, header, rows = read_markdown(transcription)
    names = [row[0] for row in rows]
    errors = []
    for each in questions:
        key = each.kind.rpartition(".")[2]
        expected = _recomputed(language, key, each.question, title, header, rows)
        if expected is None:
            errors.append(f"question {each.question!r} of kind {each.kind} cannot be answered from the table")
        elif key == "table":
            if read_markdown(each.answer) != (title, header, rows):
                errors.append("the table in the answer differs from the transcription")
        elif expected != each.answer and not _same_number(language, expected, each.answer):
            errors.append(f"{each.question!r}: answer {each.answer!r}, recomputed {expected!r}")
    if len(set(names)) < len(names):
        errors.append("two rows have one name")
    return errors


def _recomputed(
    language: str, key: str, text: str, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> str | None:
    """Return the answer to a question from cells; None if the question or a name in it is unknown."""
    if key in ("title", "rows", "columns", "table"):
        return {"title": title, "rows": str(len(rows)), "columns": str(len(header) - 1), "table": ""}[key]
    slots = slots_of(language, key if key != "absent" else "lookup_only", text)
    if key == "lookup" and slots is None:
        slots = slots_of(language, "lookup_only", text)
    if slots is None:
        return None
    by_name = {row[0]: row for row in rows}
    if key == "absent":
        return None if slots["row"] in by_name else absence(language, slots["row"])
    at = header.index(slots["column"]) if slots.get("column") in header else 1
    if "column" in slots and slots["column"] not in header:
        return None
    cells = {name: read_number(language, row[at]) for name, row in by_name.items()}
    known = {name: value for name, value in cells.items() if value is not None}
    pair = [known.get(slots[name]) for name in ("row", "other") if name in slots]
    if len(known) < len(cells) or None in pair:
        return None
    numbers = [value for value in pair if value is not None]
    match key:
        case "lookup":
            return by_name[slots["row"]][at]
        case "max" | "min":
            ordered = sorted(known, key=lambda name: known[name])
            return ordered[-1 if key == "max" else 0]
        case "sum":
            return str(sum(known.values()))
        case "difference":
            return str(abs(numbers[0] - numbers[1]))
        case "compare":
            return slots["row" if numbers[0] > numbers[1] else "other"]
        case "above":
            limit = read_number(language, slots["number"])
            return None if limit is None else str(len([value for value in known.values() if value > limit]))
    return None


def _same_number(language: str, expected: str, answer: str) -> bool:
    found = read_number(language, answer)
    return found is not None and re.fullmatch(r"-?\d+(\.\d+)?", expected) is not None and Decimal(expected) == found


def read_markdown(text: str) -> tuple[str, list[str], list[list[str]]]:
    """Return the heading, the header and the rows of a Markdown table."""
    title = ""
    lines: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("# ") and not lines:
            title = line[2:]
        elif line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
            lines.append([re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells])
    return title, lines[0], lines[2:]
