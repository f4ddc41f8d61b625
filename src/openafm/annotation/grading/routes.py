"""HTTP routes of grading. Replies name sides, never systems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from openafm.annotation.access import admin, current_person, reviewer
from openafm.annotation.errors import AnnotationError, not_found
from openafm.annotation.grading.judgments import FLAGS, MAX_COMMENT, Answers, Judgment, JudgmentStore, Kind, Verdict
from openafm.annotation.grading.project import Task
from openafm.annotation.grading.queue import Next, Queue
from openafm.annotation.people.accounts import Person
from openafm.annotation.statistics.progress import progress
from openafm.core.regular_files import open_regular

router = APIRouter(prefix="/api")

_IMAGE_TYPES = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}
_MAX_IMAGE_BYTES = 20 << 20
_HISTORY = 50

Current = Annotated[Person, Depends(current_person)]
Reviewer = Annotated[Person, Depends(reviewer)]
Admin = Annotated[Person, Depends(admin)]
Side = Literal["left", "right"]


class Satisfaction(BaseModel):
    model_config = ConfigDict(extra="forbid")
    left: int | None = None
    right: int | None = None


class Flags(BaseModel):
    model_config = ConfigDict(extra="forbid")
    left: list[str] = Field(default_factory=list, max_length=20)
    right: list[str] = Field(default_factory=list, max_length=20)


class Submission(BaseModel):
    """A judgment as the page sends it."""

    model_config = ConfigDict(extra="forbid")
    task: str = Field(max_length=100)
    verdict: Literal["left", "right", "tie", "both_bad"]
    strength: int = 0
    satisfaction: Satisfaction = Satisfaction()
    flags: Flags = Flags()
    comment: str = Field("", max_length=MAX_COMMENT)
    seconds: float = Field(0.0, ge=0, allow_inf_nan=False)
    revision: int = 0


class Skip(BaseModel):
    model_config = ConfigDict(extra="forbid")
    task: str = Field(max_length=100)
    reason: str = Field("", max_length=200)


@dataclass(frozen=True, eq=False)
class Grading:
    """What the routes use."""

    store: JudgmentStore
    queue: Queue


async def _grading(request: Request) -> Grading:
    grading: Grading = request.app.state.grading
    return grading


GradingOf = Annotated[Grading, Depends(_grading)]


@router.get("/task")
def next_task(person: Current, grading: GradingOf) -> dict[str, Any]:
    """Return the next comparison of this person."""
    return _next(grading, person, grading.queue.next(person.id), Kind.GRADE)


@router.get("/adjudication")
def next_adjudication(person: Reviewer, grading: GradingOf) -> dict[str, Any]:
    """Return a comparison on which people disagree, with their verdicts but not their names."""
    found = grading.queue.next_adjudication(person.id)
    shown = _next(grading, person, found, Kind.ADJUDICATION)
    if found.task is not None:
        left = grading.store.project.left(found.task, person.id)
        grades = [each for each in grading.store.of_task(found.task.key) if each.kind is Kind.GRADE]
        shown["opinions"] = [_sides(each, left) for each in grades]
    return shown


@router.get("/tasks/{key}")
def task(key: str, person: Current, grading: GradingOf) -> dict[str, Any]:
    """Return a comparison that this person has judged, to change the judgment."""
    own = _own(grading, key, person, Kind.GRADE)
    if own is None:
        raise not_found("judgment of yours about this comparison")
    return {"state": "open", "task": _shown(grading, grading.store.project.task(key), person, Kind.GRADE)}


@router.get("/history")
def history(person: Current, grading: GradingOf) -> list[dict[str, Any]]:
    """Return the newest judgments of this person, the newest first."""
    done = grading.store.of_person(person.id)[::-1][:_HISTORY]
    tasks = grading.store.project.tasks
    return [
        {"task": each.task, "verdict": _side_verdict(each, each.left), "prompt": tasks[each.task].item.prompt[-1][1][:80]}
        for each in done
        if each.task in tasks
    ]


@router.post("/judgments")
def submit(body: Submission, person: Current, grading: GradingOf) -> dict[str, Any]:
    """Store a judgment."""
    return {"revision": _submit(grading, body, person, Kind.GRADE).revision}


@router.post("/adjudications")
def adjudicate(body: Submission, person: Reviewer, grading: GradingOf) -> dict[str, Any]:
    """Store a reviewer's decision."""
    return {"revision": _submit(grading, body, person, Kind.ADJUDICATION).revision}


@router.post("/skips")
def skip(body: Skip, person: Current, grading: GradingOf) -> dict[str, Any]:
    """Leave a comparison to others."""
    grading.queue.skip(grading.store.project.task(body.task), person.id, body.reason)
    return {}


@router.get("/images/{key}/{index}")
def image(key: str, index: int, _person: Current, grading: GradingOf) -> Response:
    """Return an image of a comparison's prompt."""
    images = grading.store.project.task(key).item.images
    if not 0 <= index < len(images):
        raise not_found("such image")
    name = images[index]
    media_type = _IMAGE_TYPES.get(name.rpartition(".")[2].lower())
    if media_type is None:
        raise AnnotationError(f"{name} is not a PNG, JPEG, WebP or GIF image", status=415, code="media_type")
    with open_regular(grading.store.project.folder, name) as file:
        data = file.read(_MAX_IMAGE_BYTES + 1)
    if len(data) > _MAX_IMAGE_BYTES:
        raise AnnotationError(f"{name} is larger than {_MAX_IMAGE_BYTES:,} bytes; make it smaller", status=413)
    return Response(data, media_type=media_type)


@router.get("/progress")
def show_progress(request: Request, _admin: Admin, grading: GradingOf) -> dict[str, Any]:
    """Return the progress of the project by person."""
    return progress(grading.store, request.app.state.accounts.names()).to_dict()


def _submit(grading: Grading, body: Submission, person: Person, kind: Kind) -> Judgment:
    task = grading.store.project.task(body.task)
    is_first_left = grading.store.project.left(task, person.id) == task.first
    first, second = ("left", "right") if is_first_left else ("right", "left")
    verdict = {first: Verdict.FIRST, second: Verdict.SECOND}.get(body.verdict) or Verdict(body.verdict)
    answers = Answers(
        verdict=verdict,
        strength=body.strength,
        satisfaction=(getattr(body.satisfaction, first), getattr(body.satisfaction, second)),
        flags=(tuple(getattr(body.flags, first)), tuple(getattr(body.flags, second))),
        comment=body.comment,
        seconds=body.seconds,
    )
    return grading.store.submit(task, person.id, answers, revision=body.revision, kind=kind)


def _next(grading: Grading, person: Person, found: Next, kind: Kind) -> dict[str, Any]:
    shown = None if found.task is None else _shown(grading, found.task, person, kind)
    return {"state": found.state, "task": shown, "num_done": found.num_done, "num_left": found.num_left, "flags": FLAGS}


def _shown(grading: Grading, task: Task, person: Person, kind: Kind) -> dict[str, Any]:
    """Return what the page shows of a comparison."""
    left = grading.store.project.left(task, person.id)
    right = task.second if left == task.first else task.first
    own = _own(grading, task.key, person, kind)
    return {
        "key": task.key,
        "prompt": [{"role": role, "text": text} for role, text in task.item.prompt],
        "num_images": len(task.item.images),
        "left": task.item.answers[left],
        "right": task.item.answers[right],
        "category": task.item.category,
        "locale": task.item.locale,
        "guidelines": grading.store.project.guidelines_for(task.item.locale),
        "judgment": own and _sides(own, left) | {"revision": own.revision},
    }


def _own(grading: Grading, key: str, person: Person, kind: Kind) -> Judgment | None:
    found = (each for each in grading.store.of_task(key) if each.person == person.id and each.kind is kind)
    return next(found, None)


def _sides(judgment: Judgment, left: str) -> dict[str, Any]:
    """Return a judgment as the page shows it, with the system `left` on the left side."""
    first, second = ("left", "right") if left == judgment.first else ("right", "left")
    return {
        "verdict": _side_verdict(judgment, left),
        "strength": judgment.strength,
        "satisfaction": {first: judgment.satisfaction[0], second: judgment.satisfaction[1]},
        "flags": {first: list(judgment.flags[0]), second: list(judgment.flags[1])},
        "comment": judgment.comment,
    }


def _side_verdict(judgment: Judgment, left: str) -> str:
    first, second = ("left", "right") if left == judgment.first else ("right", "left")
    return {Verdict.FIRST: first, Verdict.SECOND: second}.get(judgment.verdict, str(judgment.verdict))
