"""Receipts, invoices and menus: items with prices, and totals that add up."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from openafm.data.drawing.canvas import Color
from openafm.data.drawing.choices import color_of
from openafm.data.drawing.data_tables import draw_names
from openafm.data.drawing.documents.sheet import Sheet
from openafm.data.drawing.phrases import labels

_RATES = (Decimal("0.07"), Decimal("0.1"), Decimal("0.19"), Decimal("0.2"), Decimal("0.25"))


def draw_receipt(sheet: Sheet) -> None:
    """Draw a till receipt: shop, items, totals and payment."""
    words = labels(sheet.language, "receipts")
    width = sheet.canvas.width
    left, right = 1.5 * sheet.size, width - 1.5 * sheet.size
    shop = sheet.words.draw(sheet.rng, "company")
    size = sheet.fitting(shop, round(1.5 * sheet.size), right - left, bold=True)
    sheet.text(width / 2, shop, size=size, bold=True, align="center", kind="title")
    sheet.write(f"# {shop}")
    sheet.down(2.2)
    for kind in sheet.rng.sample(("street", "city", "phone"), sheet.rng.randint(1, 3)):
        line = sheet.words.draw(sheet.rng, kind)
        sheet.text(width / 2, line, size=sheet.fitting(line, sheet.size, right - left), align="center")
        sheet.write(line)
        sheet.down()
    sheet.down(0.4)
    date, time = sheet.date(), f"{sheet.rng.randint(7, 22):02}:{sheet.rng.randint(0, 59):02}"
    for name, value in (("date", date), ("time", time)):
        _pair(sheet, left, right, words[name], value)
        sheet.ask("field", value, label=words[name])
    sheet.rule(left, right, is_dashed=True)
    sheet.down(0.6)
    names = _items(sheet, "food" if sheet.rng.random() < 0.6 else "product", sheet.rng.randint(2, 8))
    subtotal = Decimal(0)
    for name in names:
        count = sheet.rng.choice((1, 1, 1, 2, 3))
        amount = sheet.price() * count
        subtotal += amount
        _pair(sheet, left, right, f"{count} x {name}" if count > 1 else name, sheet.number(amount))
    sheet.rule(left, right, is_dashed=True)
    sheet.down(0.6)
    _totals(sheet, left, right, words, subtotal)
    sheet.down(0.6)
    sheet.text(width / 2, words["thanks"], align="center")
    sheet.write("")
    sheet.write(words["thanks"])
    sheet.down()


def _totals(sheet: Sheet, left: float, right: float, words: Mapping[str, str], subtotal: Decimal) -> None:
    tax = sheet.rounded(subtotal * sheet.rng.choice(_RATES))
    total = subtotal + tax
    for name, amount in (("subtotal", subtotal), ("tax", tax), ("total", total)):
        _pair(sheet, left, right, words[name], sheet.number(amount), bold=name == "total")
    sheet.ask("field", sheet.number(total), label=words["total"])
    if sheet.rng.random() < 0.6:
        step = max(Decimal(10) ** (len(str(int(total))) - 1), Decimal(1))
        cash = sheet.rounded((total // step + 1) * step)
        _pair(sheet, left, right, words["cash"], sheet.number(cash))
        _pair(sheet, left, right, words["change"], sheet.number(cash - total))
        sheet.ask("field", sheet.number(cash - total), label=words["change"])


def draw_invoice(sheet: Sheet) -> None:
    """Draw an invoice: sender, recipient, number and dates, a table of items, totals."""
    words, totals = labels(sheet.language, "invoices"), labels(sheet.language, "receipts")
    width = sheet.canvas.width
    left, right = 2.5 * sheet.size, width - 2.5 * sheet.size
    title = words["invoice"]
    sheet.text(left, title, size=2 * sheet.size, bold=True, fill=sheet.accent, kind="title")
    sheet.write(f"# {title}")
    sheet.down(3)
    for line in (
        sheet.words.draw(sheet.rng, "company"),
        sheet.words.draw(sheet.rng, "street"),
        sheet.words.draw(sheet.rng, "city"),
    ):
        sheet.text(left, line)
        sheet.write(line)
        sheet.down()
    sheet.down(0.5)
    recipient = f"{sheet.words.draw(sheet.rng, 'person')} {sheet.words.draw(sheet.rng, 'surname')}"
    number = f"{sheet.rng.randint(2019, 2026)}-{sheet.rng.randint(1, 9999):04}"
    for name, value in (("bill_to", recipient), ("number", number), ("due", sheet.date())):
        sheet.text(left, f"{words[name]}: {value}")
        sheet.write(f"{words[name]}: {value}")
        sheet.ask("field", value, label=words[name])
        sheet.down()
    sheet.down(0.5)
    places = (left, left + 0.56 * (right - left), left + 0.78 * (right - left), right)
    header = [words[name] for name in ("description", "quantity", "unit_price", "amount")]
    sheet.canvas.rectangle((left - 6, sheet.y - 4, right + 6, sheet.y + 1.5 * sheet.size), fill=sheet.accent)
    _cells(sheet, places, header, bold=True, fill=color_of(sheet.theme.accent_ink))
    subtotal = Decimal(0)
    for name in _items(sheet, "product", sheet.rng.randint(2, 6)):
        count, unit = sheet.rng.randint(1, 9), sheet.price()
        subtotal += count * unit
        _cells(sheet, places, [name, str(count), sheet.number(unit), sheet.number(count * unit)])
        sheet.ask("price", sheet.number(unit), row=name)
    sheet.rule(left, right)
    sheet.down(0.6)
    tax = sheet.rounded(subtotal * sheet.rng.choice(_RATES))
    for name, amount in (("subtotal", subtotal), ("tax", tax), ("total", subtotal + tax)):
        is_total = name == "total"
        value = sheet.number(amount)
        sheet.text(places[2], totals[name], bold=is_total, align="right")
        sheet.text(right, value, bold=is_total, align="right")
        sheet.row((totals[name], "", "", value))
        sheet.down()
    sheet.ask("field", sheet.number(subtotal + tax), label=totals["total"])


def draw_menu(sheet: Sheet) -> None:
    """Draw a menu: a restaurant, sections, dishes with prices."""
    words = labels(sheet.language, "menus")
    width = sheet.canvas.width
    left, right = 2.5 * sheet.size, width - 2.5 * sheet.size
    name = sheet.words.draw(sheet.rng, "name")
    size = sheet.fitting(name, 2 * sheet.size, right - left, bold=True)
    sheet.text(width / 2, name, size=size, bold=True, align="center", fill=sheet.accent, kind="title")
    sheet.write(f"# {name}")
    sheet.ask("title", name)
    sheet.down(3)
    sheet.text(width / 2, words["menu"], align="center")
    sheet.write(words["menu"])
    sheet.down(2)
    sections = sheet.rng.sample(("starters", "mains", "specials"), sheet.rng.randint(1, 3))
    dishes = _items(sheet, "food", 3 * len(sections))
    for index, section in enumerate(sections):
        here = dishes[index :: len(sections)]
        if not here:
            continue
        sheet.text(left, words[section], size=round(1.2 * sheet.size), bold=True, fill=sheet.accent, kind="heading")
        sheet.write("")
        sheet.write(f"## {words[section]}")
        sheet.down(1.9)
        for dish in here:
            price = sheet.number(sheet.price())
            _pair(sheet, left, right, dish, price, is_dotted=sheet.theme.rule != sheet.theme.soft)
            sheet.ask("price", price, row=dish)
        sheet.down(0.6)
    sheet.questions[1:] = sheet.rng.sample(sheet.questions[1:], min(3, len(sheet.questions) - 1))


def _pair(
    sheet: Sheet, left: float, right: float, name: str, value: str, *, bold: bool = False, is_dotted: bool = False
) -> None:
    """Write a name on the left and a value on the right as a row of the transcription."""
    space = sheet.width_of(value, bold=bold) + sheet.size
    size = sheet.fitting(name, sheet.size, right - left - space, bold=bold)
    if is_dotted:
        y = sheet.y + round(1.05 * sheet.size)
        start = left + sheet.width_of(name, size=size, bold=bold) + 8
        for x in range(round(start), round(right - space), 6):
            sheet.canvas.rectangle((x, y, x + 2, y + 2), fill=color_of(sheet.theme.rule))
    sheet.text(left, name, bold=bold, size=size)
    sheet.text(right, value, bold=bold, align="right")
    sheet.row((name, value))
    sheet.down()


def _cells(
    sheet: Sheet, places: tuple[float, ...], cells: list[str], *, bold: bool = False, fill: Color | None = None
) -> None:
    """Write the first cell at the left, the others right-aligned at their places."""
    for index, cell in enumerate(cells):
        room = (places[1] - places[0]) * 0.75 if index == 0 else places[index] - places[index - 1] - 4
        size = sheet.fitting(cell, sheet.size, room, bold=bold)
        sheet.text(places[index], cell, size=size, bold=bold, fill=fill, align="right" if index else "left")
    sheet.row(cells)
    sheet.down(1.7)


def _items(sheet: Sheet, kind: str, count: int) -> list[str]:
    """Return names of items whose prices can be looked up by name."""
    return draw_names(sheet.rng, sheet.language, sheet.split, kind, count, 26)
