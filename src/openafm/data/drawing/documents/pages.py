"""Forms, posters, infographics and letters."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from openafm.data.drawing.choices import color_of
from openafm.data.drawing.data_tables import draw_data_table, draw_names
from openafm.data.drawing.documents.sheet import Sheet
from openafm.data.drawing.phrases import labels, write_number
from openafm.data.drawing.table_questions import ask
from openafm.data.sites.texts import SentenceWriter

_FIELDS = {
    "first_name": "person",
    "last_name": "surname",
    "street": "street",
    "city": "city",
    "phone": "phone",
    "email": "email",
    "occupation": "job",
}


def draw_form(sheet: Sheet) -> None:
    """Draw a filled form: labeled fields and check boxes."""
    words = labels(sheet.language, "forms")
    width = sheet.canvas.width
    left, right = 2 * sheet.size, width - 2 * sheet.size
    title = words[sheet.rng.choice(("registration", "membership"))]
    sheet.canvas.rectangle((0, 0, width, 4.4 * sheet.size), fill=sheet.accent)
    sheet.text(left, title, size=round(1.6 * sheet.size), bold=True, fill=color_of(sheet.theme.accent_ink), kind="title")
    sheet.write(f"# {title}")
    sheet.ask("title", title)
    sheet.y = 5.6 * sheet.size
    names = [*sheet.rng.sample(list(_FIELDS), sheet.rng.randint(3, len(_FIELDS))), "birthday"]
    is_boxed = sheet.rng.random() < 0.5
    start = left + max(sheet.width_of(words[name]) for name in names) + 1.5 * sheet.size
    for name in names:
        value = sheet.date(1940, 2008) if name == "birthday" else sheet.words.draw(sheet.rng, _FIELDS[name])
        sheet.text(left, f"{words[name]}:")
        if is_boxed:
            box = (start - 6, sheet.y - 5, right, sheet.y + 1.5 * sheet.size)
            sheet.canvas.rectangle(box, fill=color_of(sheet.theme.soft), outline=color_of(sheet.theme.rule))
        else:
            y = sheet.y + round(1.5 * sheet.size)
            sheet.canvas.line([(start - 6, y), (right, y)], color_of(sheet.theme.rule))
        size = sheet.fitting(value, sheet.size, right - start - 8, bold=False)
        sheet.text(start, value, size=size, fill=sheet.accent, kind="value")
        sheet.write(f"{words[name]}: {value}")
        sheet.ask("field", value, label=words[name])
        sheet.down(2.2)
    sheet.down(0.3)
    sheet.text(left, words["interests"], bold=True)
    sheet.write(words["interests"])
    sheet.down(1.7)
    for hobby in draw_names(sheet.rng, sheet.language, sheet.split, "hobby", sheet.rng.randint(2, 5), 24):
        _check_box(sheet, left, hobby, words)
    sheet.questions[1:] = sheet.rng.sample(sheet.questions[1:], min(5, len(sheet.questions) - 1))


def _check_box(sheet: Sheet, left: float, name: str, words: Mapping[str, str]) -> None:
    is_checked = sheet.rng.random() < 0.5
    side = sheet.size
    top = round(sheet.y + 0.15 * side)
    box = (round(left), top, round(left) + side, top + side)
    sheet.canvas.rectangle(box, outline=sheet.ink)
    if is_checked:
        points = [(box[0] + 0.2 * side, top + 0.5 * side), (box[0] + 0.42 * side, top + 0.75 * side)]
        sheet.canvas.line([*points, (box[0] + 0.82 * side, top + 0.2 * side)], sheet.accent, 2)
    sheet.mark("checked" if is_checked else "empty", box, "checkbox")
    sheet.text(left + 1.6 * side, name)
    sheet.write(f"- [{'x' if is_checked else ' '}] {name}")
    sheet.ask("checked", words["yes" if is_checked else "no"], label=name)
    sheet.down(1.6)


def draw_poster(sheet: Sheet) -> None:
    """Draw a notice of a shop or office: a large title, opening hours and contacts."""
    words, width = labels(sheet.language, "posters"), sheet.canvas.width
    title = sheet.words.draw(sheet.rng, "company")
    sheet.canvas.rectangle((0, 0, width, 2.2 * sheet.size), fill=sheet.accent)
    sheet.y = 3.6 * sheet.size
    size = round(2.6 * sheet.size)
    for line in sheet.wrap(title, width - 3 * sheet.size, size=size, bold=True):
        sheet.text(width / 2, line, size=size, bold=True, align="center", kind="title")
        sheet.y += 1.25 * size
    sheet.write(f"# {title}")
    sheet.ask("title", title)
    sheet.down()
    left, right = 0.14 * width, 0.86 * width
    for heading in ("opening_hours", "contact"):
        sheet.text(width / 2, words[heading], bold=True, size=round(1.3 * sheet.size), align="center", fill=sheet.accent)
        sheet.write("")
        sheet.write(f"## {words[heading]}")
        sheet.down(2.2)
        for name, value in _hours(sheet) if heading == "opening_hours" else _contacts(sheet):
            size = sheet.fitting(value, sheet.size, right - left - sheet.width_of(name) - 2 * sheet.size)
            sheet.text(left, f"{name}:")
            sheet.text(right, value, size=size, align="right")
            sheet.write(f"{name}: {value}")
            sheet.ask("field", value, label=name)
            sheet.down(1.6)
        sheet.down(0.8)
    sheet.canvas.rectangle((0, sheet.y + sheet.size, width, sheet.y + 2 * sheet.size), fill=sheet.accent)
    sheet.down(1.5)
    sheet.questions[1:] = sheet.rng.sample(sheet.questions[1:], 3)


def _hours(sheet: Sheet) -> list[tuple[str, str]]:
    from openafm.data.synthetic.languages import locale_of

    days = locale_of(sheet.language).days["format"]["wide"]
    chosen = sorted(sheet.rng.sample(range(7), sheet.rng.randint(2, 6)))
    return [
        (days[day], f"{sheet.rng.randint(6, 11):02}:{sheet.rng.choice(('00', '30'))}–{sheet.rng.randint(14, 22)}:00")
        for day in chosen
    ]


def _contacts(sheet: Sheet) -> list[tuple[str, str]]:
    words = labels(sheet.language, "forms")
    return [(words[name], sheet.words.draw(sheet.rng, _FIELDS[name])) for name in ("street", "phone", "email")]


def draw_infographic(sheet: Sheet) -> None:
    """Draw an infographic: a title, bars with numbers, from data that is also the Markdown table."""
    width = sheet.canvas.width
    table = draw_data_table(
        sheet.rng, sheet.language, sheet.split, num_rows=(3, 7), is_signed=False, is_ratio=True, is_timed=False, longest=20
    )
    left, right = 2 * sheet.size, width - 2 * sheet.size
    size = round(1.7 * sheet.size)
    for line in sheet.wrap(table.title, right - left, size=size, bold=True):
        sheet.text(left, line, size=size, bold=True, fill=sheet.accent, kind="title")
        sheet.y += 1.3 * size
    sheet.write(f"# {table.title}")
    sheet.write("")
    sheet.down(0.5)
    sheet.text(left, table.dimension, bold=True)
    sheet.text(right, table.columns[0], bold=True, align="right")
    sheet.row((table.dimension, table.columns[0]))
    sheet.down(1.9)
    largest = max(table.column(0))
    is_circled = sheet.rng.random() < 0.4
    for name, value in zip(table.rows, table.column(0), strict=True):
        text = write_number(sheet.language, value)
        sheet.text(left, name)
        sheet.text(right, text, bold=True, align="right")
        sheet.row((name, text))
        sheet.down(1.6)
        top, height = round(sheet.y), round(0.7 * sheet.size)
        length = max(round(float(value / largest) * (right - left)), 1)
        sheet.canvas.rectangle(
            (left, top, right, top + height), fill=color_of(sheet.theme.soft), radius=height / 2 if is_circled else 0
        )
        box = (round(left), top, round(left) + length, top + height)
        sheet.canvas.rectangle(box, fill=sheet.accent)
        sheet.mark(name, box, "bar")
        sheet.down(1.5)
    for question in ask(sheet.rng, sheet.language, sheet.split, table, group="document"):
        sheet.questions.append(question)


def draw_letter(sheet: Sheet) -> None:
    """Draw a letter or an article in one to three columns, which are read one after the other."""
    width = sheet.canvas.width
    writer = SentenceWriter(sheet.language, sheet.split)
    topic = sheet.rng.choice(writer.topics)
    left, right = 2 * sheet.size, width - 2 * sheet.size
    heading = writer.heading(sheet.rng, topic)
    size = round(1.6 * sheet.size)
    for line in sheet.wrap(heading, right - left, size=size, bold=True):
        sheet.text(left, line, size=size, bold=True, kind="title")
        sheet.y += 1.3 * size
    sheet.write(f"# {heading}")
    sheet.ask("title", heading)
    date = sheet.date()
    sheet.down(0.3)
    sheet.text(left, date, fill=sheet.accent)
    sheet.write("")
    sheet.write(date)
    sheet.down(2.2)
    num_columns = sheet.rng.choice((1, 1, 2, 2, 3))
    gap = 1.6 * sheet.size
    column = (right - left - gap * (num_columns - 1)) / num_columns
    paragraphs = [writer.paragraph(sheet.rng, topic, sheet.rng.randint(2, 6)) for _ in range(sheet.rng.randint(2, 6))]
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += [*sheet.wrap(paragraph, column), ""]
        sheet.write("")
        sheet.write(paragraph)
    per_column = -(-len(lines) // num_columns)
    top, step = sheet.y, round(1.45 * sheet.size)
    for index, line in enumerate(lines):
        place, row = divmod(index, per_column)
        if line:
            sheet.text(left + place * (column + gap), line, y=top + row * step, kind="body")
    if num_columns > 1 and sheet.rng.random() < 0.5:
        for place in range(1, num_columns):
            x = left + place * (column + gap) - gap / 2
            sheet.canvas.line([(x, top), (x, top + per_column * step - sheet.size)], color_of(sheet.theme.rule))
    sheet.y = top + per_column * step
    if num_columns == 1:  # a break between columns hides where a paragraph ends
        sheet.ask("paragraphs", sheet.number(Decimal(len(paragraphs))))
