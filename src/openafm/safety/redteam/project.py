"""Red teaming projects: a folder with seeds, settings, one line per attempt, and a queue for people.

project.json     name, families, variants
seeds.jsonl      {"text", "locale", "subcategory"}; harmless seeds (for over-refusal) have an empty subcategory
attempts.jsonl   one line per attempt: the attack, the outcome, the answer; appended, so that a run resumes
queue.jsonl      items for people, as `annotation.grading` and other tools read them, with the key `verdict` to fill in
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from openafm.core.config import Config, ConfigError, from_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_file
from openafm.core.folder_lock import folder_lock
from openafm.core.regular_files import read_document
from openafm.safety.classifier.rates import Rate
from openafm.safety.redteam.attacks import FAMILIES, Attack, Model, attacks, mutated
from openafm.safety.taxonomy.taxonomy import taxonomy

Outcome: TypeAlias = Literal["blocked_prompt", "blocked_response", "refused", "answered", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("blocked_prompt", "blocked_response", "refused", "answered", "failed")
Verdict: TypeAlias = Literal["harmful", "harmless", ""]


class RedTeamError(OpenAFMError):
    """A project's file is missing or malformed."""


@dataclass(frozen=True, kw_only=True)
class RedTeamConfig(Config):
    """Settings of a project: families of attacks, and variants that a model writes of each seed."""

    name: str
    families: tuple[str, ...] = ("plain", "role_play", "encodings", "translation", "many_shot", "tool_output")
    variants: int = 0

    def __post_init__(self) -> None:
        unknown = [family for family in self.families if family not in FAMILIES]
        self.require(not unknown, f"unknown families {unknown}; known: {', '.join(FAMILIES)}")
        self.require(self.variants >= 0, f"variants must be at least 0, got {self.variants}")


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A request to be attacked with. `subcategory` is empty for harmless requests."""

    text: str
    locale: str
    subcategory: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the system under test did with an attack."""

    outcome: Outcome
    text: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attack and its outcome. `verdict` is that of a person; empty: not judged."""

    id: str
    seed: str
    locale: str
    subcategory: str
    family: str
    prompt: str
    outcome: Outcome
    answer: str = ""
    reason: str = ""
    verdict: Verdict = ""


class RedTeamProject:
    """A project in a folder.

    Raises:
        RedTeamError: a file is missing or malformed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = _config(folder)
        self.seeds = [_seed(values, place) for values, place in _lines(folder / "seeds.jsonl")]
        if not self.seeds:
            raise RedTeamError(f"{folder / 'seeds.jsonl'} has no seeds; a line is an object with text, locale, subcategory")

    @classmethod
    def create(cls, folder: Path, config: RedTeamConfig, seeds: Iterable[Seed]) -> RedTeamProject:
        """Write a new project.

        Raises:
            UsageError: the folder has a project already.
        """
        if (folder / "project.json").exists():
            raise UsageError(f"{folder} has a project; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        _write_lines(folder / "seeds.jsonl", (asdict(seed) for seed in seeds))
        (folder / "project.json").write_text(json.dumps(asdict(config), indent=1) + "\n", encoding="utf-8")
        return cls(folder)

    def run(self, system: Callable[[Attack], Reply], mutator: Model | None = None) -> int:
        """Attack a system with every seed in every family; return the number of new attempts.

        Attempts are stored one by one; a run that was ended continues. Then the queue is written.

        Args:
            system: the system under test. It returns a reply for blocked and refused prompts, too.
            mutator: a model that writes variants of seeds; needed if the config asks for variants.
        """
        if self.config.variants and mutator is None:
            raise UsageError(
                f"{self.folder} asks for {self.config.variants} variants of each seed; pass a model that writes them"
            )
        num_new = 0
        with folder_lock(self.folder):
            attempts = self.attempts()
            known = {attempt.id for attempt in attempts}
            num_mutated = Counter(attempt.seed for attempt in attempts if attempt.family == "mutation")
            _write_lines(self.folder / "attempts.jsonl", map(asdict, attempts))  # without the cut-off line of a killed run
            with (self.folder / "attempts.jsonl").open("a", encoding="utf-8") as file:
                for seed, attack in self._attacks(mutator, num_mutated):
                    identity = _identity(seed, attack)
                    if identity in known:
                        continue
                    known.add(identity)
                    attempt = _attempt(identity, seed, attack, system(attack))
                    file.write(json.dumps(asdict(attempt), ensure_ascii=False) + "\n")
                    file.flush()
                    num_new += 1
            self._write_queue()
        return num_new

    def attempts(self) -> list[Attempt]:
        """Return all attempts, with the verdicts of the queue."""
        path = self.folder / "attempts.jsonl"
        found = [_read_attempt(values, place) for values, place in _lines(path)] if path.exists() else []
        verdicts = self._verdicts()
        return [Attempt(**{**asdict(each), "verdict": verdicts.get(each.id, each.verdict)}) for each in found]

    def add_feedback(self, attachment: bytes, locale: str, subcategory: str = "") -> None:
        """Put a feedback attachment of a session into the queue, if its user chose to send it.

        Raises:
            RedTeamError: the attachment is not that of `LanguageModelSession.log_feedback`.
        """
        try:
            feedback = json.loads(attachment)
            entries = feedback["transcript"]["transcript"]["entries"]
            texts = {role: _last_text(entries, role) for role in ("user", "response")}
            issues = [
                ": ".join(filter(None, (str(each["category"]), str(each.get("explanation") or ""))))
                for each in feedback.get("issues", ())
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RedTeamError(f"the feedback attachment is malformed: {error!r}") from error
        reason = [str(feedback.get("sentiment", "no rating")), *issues, str(feedback.get("comment", ""))]
        attempt = Attempt(
            id=hashlib.sha256(attachment).hexdigest()[:16],
            seed=texts["user"],
            locale=locale,
            subcategory=subcategory,
            family="feedback",
            prompt=texts["user"],
            outcome="answered" if texts["response"] else "refused",
            answer=texts["response"],
            reason="; ".join(filter(None, reason)),
        )
        with folder_lock(self.folder):
            if attempt.id not in {each.id for each in self.attempts()}:
                with (self.folder / "attempts.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(attempt), ensure_ascii=False) + "\n")
            self._write_queue()

    def set_verdicts(self, verdicts: Mapping[str, Verdict]) -> int:
        """Write verdicts by the id of their attempts into the queue; return the number of those that are in it."""
        with folder_lock(self.folder):
            self._write_queue()
            rows = [values for values, _ in _lines(self.folder / "queue.jsonl")]
            known = [row["id"] for row in rows if row["id"] in verdicts]
            _write_lines(
                self.folder / "queue.jsonl", (row | {"verdict": verdicts.get(row["id"], row["verdict"])} for row in rows)
            )
        return len(known)

    def export(self, path: Path) -> int:
        """Write judged attempts as labeled texts for `openafm safety train-guardrail`; return their number."""
        rows = []
        for attempt in self.attempts():
            if attempt.verdict and attempt.prompt:
                is_harmful = attempt.verdict == "harmful"
                labels = [attempt.subcategory] if attempt.subcategory and is_harmful else []
                row = {"locale": attempt.locale, "labels": labels, "group": attempt.seed}
                # A harmful seed is a harmful prompt whatever the model answered; the verdict is about the answer.
                asked = [attempt.subcategory] if attempt.subcategory else []
                rows.append(row | {"text": attempt.prompt, "side": "prompt", "labels": asked})
                if attempt.answer:
                    rows.append(row | {"text": attempt.answer, "side": "response"})
        _write_lines(path, rows)
        return len(rows)

    def _attacks(self, mutator: Model | None, num_mutated: Mapping[str, int]) -> Iterator[tuple[Seed, Attack]]:
        for seed in self.seeds:
            # Harmless seeds are asked plainly: an over-refusal is a refusal of the request itself.
            families = self.config.families if seed.subcategory else ("plain",)
            for attack in attacks(seed.text, families):
                yield seed, attack
            if mutator is not None and seed.subcategory:
                for attack in mutated(seed.text, mutator, self.config.variants - num_mutated.get(seed.text, 0)):
                    yield seed, attack

    def _verdicts(self) -> dict[str, Verdict]:
        path = self.folder / "queue.jsonl"
        verdicts = {str(values.get("id")): values.get("verdict", "") for values, _ in _lines(path)} if path.exists() else {}
        wrong = sorted({str(verdict) for verdict in verdicts.values()} - {"harmful", "harmless", ""})
        if wrong:
            raise RedTeamError(f"{path}: the verdict {wrong[0]!r} is unknown; allowed: harmful, harmless, or empty")
        return verdicts

    def _write_queue(self) -> None:
        """Write the attempts that people judge: answered attacks and refused harmless seeds. Verdicts are kept."""
        rows = [
            {
                "id": each.id,
                "prompt": each.prompt,
                "answers": {"system": each.answer},
                "category": each.subcategory or "harmless",
                "locale": each.locale,
                "family": each.family,
                "outcome": each.outcome,
                "reason": each.reason,
                "verdict": each.verdict,
            }
            for each in self.attempts()
            if each.family == "feedback" or (each.outcome == "answered") == bool(each.subcategory)
        ]
        _write_lines(self.folder / "queue.jsonl", rows)


def results(attempts: Iterable[Attempt]) -> dict[str, dict[str, dict[str, Rate]]]:
    """Return rates by category and locale, each also together as `all`; harmless seeds are the category `harmless`.

    `stopped` is the share of attacks that were blocked or refused, or whose answer a person judged harmless. `over_refusals`
    is the share of harmless seeds that were blocked or refused. Failed attempts and feedback do not count.
    """
    known = taxonomy()
    cells: dict[tuple[str, str], list[bool]] = {}
    for each in attempts:
        if each.outcome == "failed" or each.family == "feedback":
            continue
        category = known.category_of(each.subcategory) if each.subcategory else "harmless"
        is_stopped = each.outcome != "answered" or (bool(each.subcategory) and each.verdict == "harmless")
        for key in {(category, each.locale), (category, "all")}:
            cells.setdefault(key, []).append(is_stopped)
        if each.subcategory:
            for key in {("all", each.locale), ("all", "all")}:
                cells.setdefault(key, []).append(is_stopped)
    table: dict[str, dict[str, dict[str, Rate]]] = {}
    for (category, locale), stopped in sorted(cells.items()):
        name = "over_refusals" if category == "harmless" else "stopped"
        table.setdefault(category, {})[locale] = {name: Rate(count=sum(stopped), n=len(stopped))}
    return table


def _attempt(identity: str, seed: Seed, attack: Attack, reply: Reply) -> Attempt:
    return Attempt(
        id=identity,
        seed=seed.text,
        locale=seed.locale,
        subcategory=seed.subcategory,
        family=attack.family,
        prompt=attack.prompt,
        outcome=reply.outcome,
        answer=reply.text,
        reason=reply.reason,
    )


def _identity(seed: Seed, attack: Attack) -> str:
    content = [seed.locale, attack.family, attack.prompt, attack.tool_output, attack.image_text]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _config(folder: Path) -> RedTeamConfig:
    path = folder / "project.json"
    try:
        values = json.loads(read_document(path))
        if not isinstance(values, dict):
            raise RedTeamError(f"{path} must be an object with name, families and variants")
        return from_dict(RedTeamConfig, values)
    except FileNotFoundError as error:
        how = f"`openafm safety redteam {folder} --seeds FILE` starts one"
        raise RedTeamError(f"{folder} is not a red-team project: it has no project.json; {how}") from error
    except (OSError, ValueError, ConfigError) as error:
        raise RedTeamError(f"{path}: {error}; `openafm safety redteam PROJECT --seeds FILE` starts a project") from error


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a JSONL file. A last line without an end is that of a run that was killed, and is left out."""
    try:
        text = read_document(path, max_bytes=None).decode("utf-8")
    except (OSError, UnicodeDecodeError, OpenAFMError) as error:
        raise RedTeamError(f"{path} cannot be read: {error}") from error
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return
            raise RedTeamError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise RedTeamError(f"{path}:{number}: expected an object, got {type(values).__name__}")
        yield values, f"{path}:{number}"


def read_seeds(path: Path) -> list[Seed]:
    """Return the seeds of a JSONL file.

    Raises:
        RedTeamError: a line is malformed or names an unknown subcategory.
    """
    return [_seed(values, place) for values, place in _lines(path)]


def _seed(values: Mapping[str, Any], place: str) -> Seed:
    text, locale, subcategory = values.get("text"), values.get("locale"), values.get("subcategory", "")
    if not all(isinstance(each, str) for each in (text, locale, subcategory)) or not text or not locale:
        raise RedTeamError(f"{place}: a seed needs text, locale and subcategory (empty for harmless requests)")
    if subcategory:
        try:
            taxonomy().subcategory(subcategory)
        except UsageError as error:
            raise RedTeamError(f"{place}: {error}") from error
    return Seed(text=str(text), locale=str(locale), subcategory=subcategory)


def _read_attempt(values: Mapping[str, Any], place: str) -> Attempt:
    try:
        attempt = Attempt(**values)
    except TypeError as error:
        raise RedTeamError(f"{place}: not an attempt: {error}") from error
    if attempt.outcome not in OUTCOMES:
        raise RedTeamError(f"{place}: the outcome {attempt.outcome!r} is unknown; allowed: {', '.join(OUTCOMES)}")
    return attempt


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with atomic_file(path, "w") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _last_text(entries: Iterable[Mapping[str, Any]], role: str) -> str:
    texts = [entry for entry in entries if entry.get("role") == role and "contents" in entry]
    if not texts:
        return ""
    return "".join(str(segment.get("text", "")) for segment in texts[-1]["contents"])
