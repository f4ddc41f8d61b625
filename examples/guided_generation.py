"""Guided generation: get an instance of a type; here an order with nested items, guides and a union.

python examples/guided_generation.py
"""

from __future__ import annotations

import datetime
from enum import Enum

import openafm as fm


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@fm.generable
class Drink:
    name: str = fm.guide(anyOf=["coffee", "tea", "juice"])
    size: Size


@fm.generable
class Meal:
    name: str = fm.guide(anyOf=["soup", "pasta", "salad"])
    portions: int = fm.guide(range=(1, 4))


@fm.generable("What a guest orders")
class Order:
    items: list[Drink | Meal] = fm.guide(min_items=1, max_items=3)
    table: int = fm.guide("The number of the table", range=(1, 20))
    on: datetime.date | None


def main() -> None:
    session = fm.LanguageModelSession("Take orders.")
    response = session.respond_full_blocking("Two soups and a large coffee for table 7, please", generating=Order)
    order = response.content
    print(f"table {order.table}, {order.on or 'today'}:")
    for item in order.items:
        print(" ", item)
    print(response.raw_content.to_json())
    print(f"{response.usage.generated_tokens} tokens, {response.usage.forced_tokens} of them forced by the schema")


if __name__ == "__main__":
    main()
