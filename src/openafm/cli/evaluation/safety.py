"""`openafm safety`: the taxonomy, checks of texts, guardrail models, overrides and red teaming (report 9)."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError
from openafm.core.locales import check_locale

if TYPE_CHECKING:
    from openafm.safety.classifier.examples import Side
    from openafm.safety.guardrail import Guardrail
    from openafm.safety.redteam.project import RedTeamProject

_LOCALES = ("de", "en", "es", "fr", "it", "ja", "ko", "nl", "pt", "sv", "tr", "zh-Hans", "zh-Hant")

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
    if locale is not None:
        check_locale(locale, _LOCALES)
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


@app.command()
def check(
    text: Annotated[str, typer.Argument(help="The text.")],
    locale: Annotated[str | None, typer.Option(help="Locale of the text, such as de or zh-Hant.")] = None,
    side: Annotated[str, typer.Option(help="prompt or response.")] = "prompt",
    guardrail: Annotated[Path | None, typer.Option(exists=True, help="A guardrail model of train-guardrail.")] = None,
    lists: Annotated[
        Path | None, typer.Option(exists=True, help="Folder of override lists; by default the shipped ones.")
    ] = None,
    feature: Annotated[str | None, typer.Option(help="Feature of the app, for lists with actions by feature.")] = None,
    json: JsonOption = False,
) -> None:
    """Check a text with the built-in blocklist, override lists and a guardrail model. Exit code 1 if it is blocked."""
    from dataclasses import asdict

    from openafm.safety.blocklist import BlocklistConfig
    from openafm.safety.guardrail import Violation
    from openafm.safety.overrides.guardrail import OverridesFolder
    from openafm.safety.overrides.lists import seed_lists
    from openafm.safety.overrides.matcher import Overrides

    if locale is not None:
        check_locale(locale, _LOCALES)
        _note_unknown(locale)
    overrides = Overrides(seed_lists()) if lists is None else OverridesFolder(lists).current()
    if lists is not None and not any(lists.iterdir()):
        raise UsageError(f"{lists} holds no override lists; pass a folder with some, or leave --lists out")
    hits = overrides.find(text, locale, feature)
    guardrails: dict[str, Guardrail] = {"blocklist": BlocklistConfig().build()}
    scores = {}
    if guardrail is not None:
        from openafm.safety.classifier.model import ModelGuardrail

        model = ModelGuardrail.open(guardrail, locale)
        guardrails["model"] = model
        scores = asdict(model.score(text, _side(side))) | {"threshold": asdict(model.threshold(_side(side)))}
    is_prompt = _side(side) == "prompt"
    verdicts = {n: g.check_input(text) if is_prompt else g.check_output(text) for n, g in guardrails.items()}
    violations = {name: asdict(verdict) for name, verdict in verdicts.items() if isinstance(verdict, Violation)}
    is_blocked = bool(violations) or any(hit.action == "block" for hit in hits)
    if json:
        found = {"blocked": is_blocked, "side": side, "locale": locale, "violations": violations}
        print_json(found | {"overrides": [asdict(hit) for hit in hits], "model": scores or None})
    else:
        print_text("blocked" if is_blocked else "allowed")
        for name, violation in violations.items():
            print_text(f"{name}: {violation['category']}: {violation['reason']}")
        for hit in hits:
            print_text(f"override list {hit.list_name}: {hit.action} ({hit.subcategory}) at {hit.start}-{hit.end}")
    raise typer.Exit(int(is_blocked))


def _note_unknown(locale: str) -> None:
    """Print a note if nothing is calibrated or listed for a locale's language."""
    languages = sorted({known.partition("-")[0] for known in _LOCALES})
    if locale.partition("-")[0] not in languages:
        note = f"no list or threshold is for the locale {locale}; those for all locales are used"
        print(f"{note} (languages with their own: {', '.join(languages)})", file=sys.stderr)


@app.command("sign-list")
def sign_list(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An override list (JSON).")],
    key: Annotated[Path, typer.Option(exists=True, help="Private key of `openafm adapter keygen`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the signed update.")],
) -> None:
    """Sign an override list, so that others can install it as an update."""
    from openafm.adapters.delivery.keys import read_private_key
    from openafm.core.files import atomic_file
    from openafm.core.regular_files import read_document
    from openafm.safety.overrides.updates import signed_update

    update = signed_update(read_document(file), read_private_key(key))
    with atomic_file(out) as written:
        written.write(update)
    print_text(f"signed update in {out}")


@app.command("update-list")
def update_list(
    update: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A signed update.")],
    folder: Annotated[Path, typer.Argument(help="Folder of override lists.")],
    key: Annotated[str, typer.Option(help="Public key of the publisher, or its file.")],
) -> None:
    """Install a signed update of an override list. One with another signature or without a higher sequence is refused."""
    from openafm.adapters.delivery.keys import read_public_key
    from openafm.core.regular_files import read_document
    from openafm.safety.overrides.updates import apply_update

    installed = apply_update(folder, read_document(update), read_public_key(key))
    print_text(f"{installed.name}: sequence {installed.sequence}, {counted(len(installed.terms), 'term')} in {folder}")


@app.command("train-guardrail")
def train_guardrail(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the guardrail model.")],
    data: Annotated[list[Path] | None, typer.Option(exists=True, help="JSONL of labeled texts. May be repeated.")] = None,
    bundle: Annotated[str | None, typer.Option("--from", help="Read the hidden states of this bundle, too.")] = None,
    seeds: Annotated[bool, typer.Option(help="Train on the texts that come with openafm, too.")] = False,
    false_refusals: Annotated[float, typer.Option(help="Highest share of harmless texts above the threshold.")] = 0.05,
    json: JsonOption = False,
) -> None:
    """Train a guardrail model on labeled texts and calibrate its thresholds by locale."""
    from openafm.bundle import open_bundle
    from openafm.safety.classifier.examples import read_labeled_texts, training_seeds
    from openafm.safety.classifier.features import HiddenStatesConfig
    from openafm.safety.classifier.training import GuardrailTrainingConfig
    from openafm.safety.classifier.training import train_guardrail as train

    config = GuardrailTrainingConfig(false_refusals=false_refusals)
    if bundle is not None:
        config = dataclasses.replace(config, features=(HiddenStatesConfig(), *config.features))
    texts = [text for path in data or () for text in read_labeled_texts(path)] + (training_seeds() if seeds else [])
    if not texts:
        raise UsageError("there is nothing to train on; pass --data FILE.jsonl, --seeds, or both")
    _, report = train(config, None if bundle is None else open_bundle(bundle), texts, out)
    if json:
        print_json({"out": str(out), "texts": len(texts), "calibration": report})
        return
    rows = [
        [side, locale, _share(row["recall"]), _share(row["false_refusals"]), row["threshold"], row["is_default_threshold"]]
        for side, rows in report.items()
        for locale, row in rows.items()
    ]
    print_table(["side", "locale", "recall", "false refusals", "threshold", "default"], rows)
    print_text(f"{out}: trained on {counted(len(texts), 'text')}; these rates are of parts left out in training")


@app.command()
def redteam(
    project: Annotated[Path, typer.Argument(help="Folder of the project.")],
    seeds: Annotated[
        Path | None, typer.Option(exists=True, help="JSONL of text, locale, subcategory: starts a project.")
    ] = None,
    family: Annotated[list[str] | None, typer.Option(help="A family of attacks of a new project. May be repeated.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Bundle under test; by default the current one.")
    ] = None,
    instructions: Annotated[str, typer.Option(help="Instructions of the sessions under test.")] = "",
    guardrail: Annotated[Path | None, typer.Option(exists=True, help="A guardrail model, beside the blocklist.")] = None,
    mutator: Annotated[str | None, typer.Option(help="Bundle that rewrites seeds.")] = None,
    variants: Annotated[int, typer.Option(min=0, help="Rewritten forms of each seed of a new project.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Token limit of an answer.")] = 128,
    feedback: Annotated[
        list[Path] | None, typer.Option(exists=True, help="Feedback attachments for the queue: files, or folders of them.")
    ] = None,
    locale: Annotated[str, typer.Option(help="Locale of the feedback.")] = "en",
    grading: Annotated[
        Path | None, typer.Option(help="Write answered attacks and feedback as a grading project, or add new ones to it.")
    ] = None,
    grades: Annotated[
        Path | None, typer.Option(exists=True, help="Copy the verdicts of people from this grading project into the queue.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write judged attempts as data for train-guardrail.")] = None,
    json: JsonOption = False,
) -> None:
    """Attack a model with the seeds of a project. A run that was ended continues.

    With --feedback, --grading, --grades or --export nothing is attacked.
    """
    from openafm.safety.redteam.project import RedTeamConfig, RedTeamProject, read_seeds

    check_locale(locale, _LOCALES)
    if seeds is not None:
        families = tuple(family) if family else RedTeamConfig(name=project.name).families
        config = RedTeamConfig(name=project.name, families=families, variants=variants)
        opened = RedTeamProject.create(project, config, read_seeds(seeds))
    else:
        opened = RedTeamProject(project)
    done: dict[str, int] = {}
    lines: list[str] = []
    if feedback:
        files = [each for path in feedback for each in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
        for file in files:
            opened.add_feedback(file.read_bytes(), locale)
        done["feedback"] = len(files)
        lines.append(f"{counted(len(files), 'feedback attachment')} in {project / 'queue.jsonl'}")
    if grading is not None or grades is not None:
        lines += _by_people(opened, grading, grades, done)
    if export is not None:
        done["exported"] = opened.export(export)
        lines.append(
            f"{counted(done['exported'], 'labeled text')} in {export}; next: openafm safety train-guardrail --data {export}"
        )
    if not done:
        done["attempts"] = _attack(opened, model, instructions, guardrail, mutator, max_tokens)
        lines.append(
            f"{counted(done['attempts'], 'new attempt')} in {project}; people judge them with --grading FOLDER, or in"
            f" {project / 'queue.jsonl'}, then `openafm safety report {project}`"
        )
    if json:
        print_json({"project": str(project), **done})
    else:
        print_text("\n".join(lines))


def _by_people(opened: RedTeamProject, grading: Path | None, grades: Path | None, done: dict[str, int]) -> list[str]:
    """Exchange attempts and verdicts with grading projects."""
    from openafm.core.libraries import needed

    lines = []
    with needed("grading", "fastapi, uvicorn and SQLAlchemy", "annotate"):
        from openafm.recipes.red_team_grading import read_verdicts, write_grading_project

        if grading is not None:
            done["items"] = write_grading_project(opened, grading)
            lines.append(f"{counted(done['items'], 'new item')} in {grading}; next: openafm grade serve --project {grading}")
        if grades is not None:
            done["verdicts"] = read_verdicts(opened, grades)
            lines.append(
                f"{counted(done['verdicts'], 'verdict')} from {grades}; next: openafm safety report {opened.folder}"
            )
    return lines


def _attack(
    opened: RedTeamProject,
    model: str | None,
    instructions: str,
    guardrail: Path | None,
    mutator: str | None,
    max_tokens: int,
) -> int:
    """Attack a model and return the number of new attempts."""
    from openafm.bundle import open_bundle, resolve_model
    from openafm.framework.backends.system_model import SystemLanguageModel
    from openafm.recipes import red_teaming
    from openafm.safety.blocklist import BlocklistConfig
    from openafm.safety.guardrail import CombinedGuardrail

    guardrails: list[Guardrail] = [BlocklistConfig().build()]
    if guardrail is not None:
        from openafm.safety.classifier.model import ModelGuardrail

        guardrails.append(ModelGuardrail.open(guardrail))
    bundle = open_bundle(model or resolve_model())
    tested = SystemLanguageModel(bundle=bundle.path, guardrails=CombinedGuardrail(*guardrails))
    writer = None if mutator is None else red_teaming.mutator(SystemLanguageModel(bundle=mutator), max_tokens)
    return opened.run(red_teaming.system_under_test(tested, instructions, max_tokens), writer)


@app.command()
def report(
    project: Annotated[Path, typer.Argument(help="Folder of the project.")],
    html: Annotated[Path | None, typer.Option(help="Write an HTML page, too.")] = None,
    json: JsonOption = False,
) -> None:
    """Print the results of a project by category and locale, with over-refusals beside them."""
    from openafm.core.files import atomic_file
    from openafm.safety.redteam.project import OUTCOMES, RedTeamProject, results
    from openafm.safety.redteam.report import family_rows, html_report, result_rows

    opened = RedTeamProject(project)
    attempts = opened.attempts()
    if html is not None:
        with atomic_file(html, "w") as file:
            file.write(html_report(opened))
    if json:
        table = {
            category: {
                where: {measure: rate.to_dict() for measure, rate in measures.items()} for where, measures in locales.items()
            }
            for category, locales in results(attempts).items()
        }
        print_json({"project": opened.config.name, "attempts": len(attempts), "results": table})
        return
    print_table(["category", "locale", "measure", "rate"], result_rows(attempts))
    print_text("")
    print_table(["family", *(outcome.replace("_", " ") for outcome in OUTCOMES)], family_rows(attempts))


def _side(value: str) -> Side:
    if value == "prompt":
        return "prompt"
    if value == "response":
        return "response"
    raise UsageError(f"--side must be prompt or response, got {value!r}")


def _share(rate: dict[str, object]) -> str:
    if rate["share"] is None:
        return f"not reported, n = {rate['n']} < 50"
    return f"{rate['share']} {rate['interval']} of {rate['n']}"
