"""Progress of an annotation project by person, from the logs of its items."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from openafm.annotation.progress import PersonProgress, Progress
from openafm.annotation.statistics.agreement import is_drift, share
from openafm.annotation.trees.statistics import worked_seconds
from openafm.annotation.trees.tree import Event, EventKind, Log, read_log


@dataclass
class _Work:
    """Collect the items of a person."""

    items: list[Log] = field(default_factory=list)  # items whose newest change is this person's
    seconds: dict[str, float] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)


def progress(logs: Mapping[str, Sequence[Event]], names: Mapping[str, str], title: str) -> Progress:
    """Return the progress of a project.

    An item counts for the person of its newest change. Two people agree on a scenario if their items are done and their main
    stems have the same calls.

    Args:
        logs: the events by item.
        names: the names of accounts by id.
    """
    people: dict[str, _Work] = {}
    read = {item: read_log(events) for item, events in logs.items()}
    for item, log in sorted(read.items(), key=lambda each: each[1].events[-1].time):
        people.setdefault(log.events[-1].person or "", _Work()).items.append(log)
        for before, after in itertools.pairwise(log.events):
            seconds = people.setdefault(after.person or "", _Work()).seconds
            seconds[item] = seconds.get(item, 0.0) + worked_seconds(before, after)
        for person, error in _flagged(log):
            people.setdefault(person, _Work()).errors[error] += 1
    done = {person: [log for log in work.items if log.tree.is_done] for person, work in people.items()}
    agreed = {person: [pair for log in logs for pair in _compared(log, person, done)] for person, logs in done.items()}
    errors = Counter(error for log in read.values() for flags in log.tree.flags.values() for error in flags)
    total_seconds = sum(sum(work.seconds.values()) for work in people.values())
    num_done = sum(log.tree.is_done for log in read.values())
    return Progress(
        title=title,
        unit="items",
        total=len(read),
        done=num_done,
        open=len(read) - num_done,
        flagged=sum(any(log.tree.flags.values()) for log in read.values()),
        seconds=total_seconds / len(read) if read else None,
        errors=dict(errors),
        agreement=share([pair for pairs in agreed.values() for pair in pairs]),
        people=tuple(
            sorted(
                (_person(names.get(id, "unknown"), work, agreed[id]) for id, work in people.items()), key=lambda p: p.name
            )
        ),
    )


def _person(name: str, work: _Work, agreed: Sequence[bool]) -> PersonProgress:
    half = len(agreed) // 2
    num_done = sum(log.tree.is_done for log in work.items)
    return PersonProgress(
        name=name,
        done=num_done,
        open=len(work.items) - num_done,
        flagged=sum(any(log.tree.flags.values()) for log in work.items),
        seconds=sum(work.seconds.values()) / len(work.seconds) if work.seconds else None,
        errors=dict(work.errors),
        agreement=share(agreed),
        agreement_early=share(agreed[:half]),
        agreement_late=share(agreed[half:]),
        notes=("drift",) if is_drift(agreed[:half], agreed[half:]) else (),
    )


def _flagged(log: Log) -> Iterator[tuple[str, str]]:
    """Yield person and kind of each flag that is set; undone ones are left out."""
    found: dict[tuple[int, str], str] = {}
    for event in itertools.chain.from_iterable(log.done):
        if event.kind is EventKind.FLAG:
            key = (event.payload["node"], event.payload["error"])
            found.pop(key, None)
            if event.payload["on"]:
                found[key] = event.person or ""
    yield from ((person, error) for (_, error), person in found.items())


def _compared(log: Log, person: str, done: Mapping[str, Sequence[Log]]) -> Iterator[bool]:
    """Yield for each other person's item of the same scenario whether the calls of the main stems are equal."""
    for other, logs in done.items():
        for each in logs if other != person else ():
            if each.tree.opening["scenario"] == log.tree.opening["scenario"]:
                yield _calls(each) == _calls(log)


def _calls(log: Log) -> list[object]:
    return [call for node in log.tree.path() for call in node.content.calls]
