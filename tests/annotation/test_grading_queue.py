"""The store of judgments and the queue of comparisons."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest
from grading_projects import SetClock, add_people, item, judge, project_of, store_of

from openafm.annotation.database import Database, NewerDatabaseError
from openafm.annotation.errors import AnnotationError
from openafm.annotation.grading.items import write_items
from openafm.annotation.grading.judgments import Answers, JudgmentStore, Kind, Verdict
from openafm.annotation.grading.project import DATABASE, ITEMS, open_project
from openafm.annotation.grading.queue import Queue, QueueState
from openafm.annotation.grading.tables import GRADING
from openafm.annotation.people.accounts import Accounts
from openafm.annotation.people.privacy import delete_person, export_person
from openafm.annotation.people.tables import PEOPLE
from openafm.core.files import OutOfSpaceError


def work(store: JudgmentStore, person: str, verdicts: dict[str, str] | None = None) -> list[str]:
    """Judge until the queue is empty; return the items in order. `verdicts` are by item, else the first is better."""
    queue, items = Queue(store), list[str]()
    while (task := queue.next(person).task) is not None:
        items.append(task.item.id)
        judge(store, task.key, person, (verdicts or {}).get(task.item.id, "first"))
    return items


def test_each_comparison_gets_as_many_people_as_the_overlap(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path, overlap=2))
    ana, bo, cy = add_people(store, "Ana", "Bo", "Cy")
    assert sorted(work(store, ana)) == sorted(work(store, bo)) == ["i0", "i1", "i2", "i3"]
    assert work(store, cy) == []
    assert len(store.all()) == 8


def test_an_opened_comparison_is_resumed_and_not_given_to_others(tmp_path: Path) -> None:
    clock = SetClock()
    store = store_of(project_of(tmp_path, [item("only")], overlap=1), clock)
    ana, bo = add_people(store, "Ana", "Bo")
    opened = Queue(store).next(ana)
    assert opened.task is not None
    assert Queue(store_of(store.project, clock)).next(ana).task == opened.task  # after a restart
    assert Queue(store).next(bo).state is QueueState.DONE
    clock.now += 60 * store.project.config.lease_minutes
    assert Queue(store).next(bo).task == opened.task
    judge(store, opened.task.key, bo)
    judge(store, opened.task.key, ana)  # late, and not lost
    assert [each.person for each in store.all()] == [bo, ana]


def test_a_clock_that_is_set_back_does_not_keep_leases(tmp_path: Path) -> None:
    clock = SetClock()
    store = store_of(project_of(tmp_path, [item("only")], overlap=1), clock)
    ana, bo = add_people(store, "Ana", "Bo")
    Queue(store).next(ana)
    clock.now -= 1e6
    task = Queue(store).next(bo).task
    assert task is not None
    judge(store, task.key, bo, seconds=3.0)
    assert store.all()[0].seconds == 3.0
    clock.now -= 1e6
    judge(store, task.key, ana)
    assert [each.person for each in store.all()] == [bo, ana]  # in order of their storage


def test_two_windows_do_not_overwrite_each_other(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path))
    (ana,) = add_people(store, "Ana")
    task = next(iter(store.project.tasks.values()))
    first = judge(store, task.key, ana, "first", comment="window one", seconds=2.0)
    with pytest.raises(AnnotationError, match="another window") as caught:
        judge(store, task.key, ana, "second")
    assert caught.value.status == 409
    assert store.of_person(ana) == [first]
    changed = store.submit(task, ana, Answers(verdict=Verdict.TIE, seconds=1.0), revision=first.revision)
    assert (changed.verdict, changed.revision, changed.seconds) == (Verdict.TIE, 2, 3.0)
    assert store.of_person(ana) == [changed]


def test_many_people_at_once_get_different_comparisons(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path, [item(f"i{n}") for n in range(30)], overlap=1))
    people = add_people(store, *(f"P{n}" for n in range(5)))
    threads = [threading.Thread(target=work, args=(store, person)) for person in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.task for each in store.all()) == sorted(store.project.tasks)


def test_skipped_comparisons_go_to_others(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path, [item("only")], overlap=1))
    ana, bo = add_people(store, "Ana", "Bo")
    task = Queue(store).next(ana).task
    assert task is not None
    Queue(store).skip(task, ana, "I do not know the subject")
    assert Queue(store).next(ana).state is QueueState.DONE
    assert Queue(store).next(bo).task == task


def gold_items(number: int) -> list[object]:
    return [item(f"gold{n}", gold="b") for n in range(number)]


def test_qualification_comes_first_and_gold_items_follow_at_intervals(tmp_path: Path) -> None:
    items = [*(item(f"i{n}") for n in range(6)), *gold_items(5)]
    store = store_of(project_of(tmp_path, items, overlap=1, qualification_items=2, gold_every=3))
    (ana,) = add_people(store, "Ana")
    order = work(store, ana, {f"gold{n}": "second" for n in range(5)})
    assert [name.startswith("gold") for name in order] == [True, True, False, False, False, True, False, False, False]


def test_people_who_fail_gold_items_are_screened_out(tmp_path: Path) -> None:
    items = [*(item(f"i{n}") for n in range(6)), *gold_items(3)]
    store = store_of(project_of(tmp_path, items, overlap=1, qualification_items=2))
    ana, bo = add_people(store, "Ana", "Bo")
    assert len(work(store, ana, {"gold0": "first", "gold1": "first", "gold2": "tie"})) == 2
    assert Queue(store).next(ana).state is QueueState.SCREENED_OUT
    assert len(work(store, bo, {f"gold{n}": "second" for n in range(3)})) == 8


def test_comparisons_without_a_majority_are_adjudicated(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path, overlap=2))
    ana, bo, cy = add_people(store, "Ana", "Bo", "Cy")
    work(store, ana)
    work(store, bo, {"i1": "second", "i2": "tie"})
    queue = Queue(store)
    assert queue.next_adjudication(ana).state is QueueState.DONE  # she judged them herself
    seen = set()
    while (task := queue.next_adjudication(cy).task) is not None:
        seen.add(task.item.id)
        store.submit(task, cy, Answers(verdict=Verdict.BOTH_BAD), kind=Kind.ADJUDICATION)
    assert seen == {"i1", "i2"}
    assert len(store.all(Kind.GRADE)) == 8


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"verdict": Verdict.FIRST, "strength": 0}, "strength"),
        ({"verdict": Verdict.FIRST, "strength": 4}, "strength"),
        ({"verdict": Verdict.TIE, "strength": 1}, "strength"),
        ({"verdict": Verdict.TIE, "satisfaction": (6, None)}, "satisfaction"),
        ({"verdict": Verdict.TIE, "flags": (("rude",), ())}, "unknown flag 'rude'"),
        ({"verdict": Verdict.TIE, "comment": "x" * 5001}, "5,001 characters"),
        ({"verdict": Verdict.TIE, "seconds": -1.0}, "negative"),
        ({"verdict": Verdict.TIE, "seconds": math.nan}, "negative"),
    ],
)
def test_wrong_answers_are_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(AnnotationError, match=reason):
        Answers(**values)


def test_edited_and_removed_items_are_noticed(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    store = store_of(project)
    (ana,) = add_people(store, "Ana")
    work(store, ana)
    write_items(tmp_path / ITEMS, [item("i0", prompt="Edited?"), *project.items[1:]])
    with pytest.raises(AnnotationError, match="'i0' was edited"):
        store_of(open_project(tmp_path))
    write_items(tmp_path / ITEMS, [*project.items[1:], item("new")])
    with pytest.raises(AnnotationError, match="'i0' is missing"):
        store_of(open_project(tmp_path))
    write_items(tmp_path / ITEMS, [*project.items, item("new")])
    assert len(store_of(open_project(tmp_path)).all()) == 4


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path))
    (ana,) = add_people(store, "Ana")
    first, second = list(store.project.tasks)[:2]
    judge(store, first, ana)
    with store.database.reading() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        pages = connection.exec_driver_sql("PRAGMA max_page_count").scalar()
    assert pages
    with pytest.raises(OutOfSpaceError):
        for key in [second, *list(store.project.tasks)[2:]]:
            judge(store, key, ana, comment="x" * 5000)
    assert first in {each.task for each in store.all()}


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path))
    with store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE schemas SET version = 99 WHERE name = 'grading'")
    with pytest.raises(NewerDatabaseError, match="install a newer openafm"):
        store_of(store.project)
    assert Database(tmp_path / DATABASE, [PEOPLE])


def test_a_persons_judgments_are_exported_and_deleted(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path))
    ana, bo = add_people(store, "Ana", "Bo")
    work(store, ana)
    work(store, bo)
    accounts = Accounts(store.database, store.clock)
    assert len(export_person(accounts, ana)["judgments"]) == 4
    delete_person(accounts, ana, by=None)
    assert {each.person for each in store.all()} == {bo}


def test_judgments_in_postgresql(tmp_path: Path, postgres_url: str) -> None:
    project = project_of(tmp_path, overlap=2)
    store = JudgmentStore(project, Database(postgres_url, [PEOPLE, GRADING]), SetClock())
    ana, bo = add_people(store, "Ana", "Bo")
    assert len(work(store, ana)) == len(work(store, bo)) == 4
    assert len(store.all()) == 8
    delete_person(Accounts(store.database, store.clock), ana, by=None)
    assert {each.person for each in store.all()} == {bo}
    store.database.close()
