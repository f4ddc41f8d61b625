"""Dynamic schemas: the model fills in a form that is defined at run time, here by a dictionary.

python examples/dynamic_schema.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import openafm as fm

FORM = {
    "kind": ["bug", "wish", "question"],
    "urgent": bool,
    "affected versions": [1, 2, 3],
}


def schema_of(form: Mapping[str, object]) -> fm.GenerationSchema:
    """Return a schema with one property per row of a form: a list of texts, a list of numbers, or a type."""
    dynamic = fm.DynamicGenerationSchema

    def part(row: object) -> fm.DynamicGenerationSchema:
        match row:
            case [str(), *_]:
                return dynamic.any_of(map(str, row))
            case Sequence():
                number = dynamic.of(int, [fm.GenerationGuide.range((min(row), max(row)))])
                return dynamic.array_of(number, minimum_elements=1, maximum_elements=len(row))
        return dynamic.of(row)

    properties = [dynamic.Property(name, part(row)) for name, row in form.items()]
    return fm.GenerationSchema(root=dynamic.object("Form", "A ticket", properties))


def main() -> None:
    schema = schema_of(FORM)
    print(schema.to_dict())
    session = fm.LanguageModelSession("Fill in the form.")
    content = session.respond_blocking("Version 2 crashes when I print, please help soon!", schema=schema)
    for name in FORM:
        print(f"{name}: {content.value(for_property=name)}")
    try:
        fm.GenerationSchema(root=fm.DynamicGenerationSchema.reference_to("Customer"))
    except fm.UndefinedReferencesError as error:
        print("refused:", error)


if __name__ == "__main__":
    main()
