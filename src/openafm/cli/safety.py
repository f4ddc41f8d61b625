"""`openafm safety`: the taxonomy, checks of texts, guardrail models, overrides and red teaming (report 9)."""

from __future__ import annotations

from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table, print_text

app = typer.Typer(help="Check texts, train guardrails, attack models.", no_args_is_help=True)


@app.command()
def taxonomy(
    category: Annotated[str | None, typer.Argument(help="Show one category only.")] = None,
    locale: Annotated[str | None, typer.Option(help="Add the notes for a locale, such as de or zh-Hant.")] = None,
    json: JsonOption = False,
) -> None:
    """List the categories of harm, their default actions and their codes in other taxonomies."""
    from dataclasses import asdict

    from openafm.safety.taxonomy.taxonomy import taxonomy as load_taxonomy

    known = load_taxonomy()
    if category is not None:
        category = known.category_of(category)
    shown = [each for each in known.subcategories.values() if category in (None, each.category)]
    notes = [] if locale is None else known.notes_for(locale, {each.id for each in shown})
    if json:
        print_json(
            {"version": known.version, "subcategories": [asdict(s) for s in shown], "notes": [asdict(n) for n in notes]}
        )
        return
    print_table(
        ["subcategory", "action", "AILuminate", "Llama Guard", "definition"],
        [
            [each.id, str(each.action), " ".join(each.ailuminate), " ".join(each.llama_guard), each.definition]
            for each in shown
        ],
    )
    for note in notes:
        print_text(f"{', '.join(note.subcategories)} ({', '.join(note.locales)}): {note.text}")
