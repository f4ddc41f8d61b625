"""Statistics of grading: against other packages, by known cases, and the report of a simulated project."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import choix
import krippendorff
import numpy as np
import pytest
from grading_projects import add_people, item, judge, project_of, store_of
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from openafm.annotation.errors import AnnotationError
from openafm.annotation.grading.judgments import Answers, Judgment, JudgmentStore, Kind, Verdict
from openafm.annotation.grading.project import Project, Task
from openafm.annotation.statistics.agreement import (
    Level,
    cohens_kappa,
    consensus_rate,
    disagreement_rate,
    krippendorff_alpha,
)
from openafm.annotation.statistics.figure import write_figure
from openafm.annotation.statistics.graders import grader_reports
from openafm.annotation.statistics.intervals import bootstrap_mean, wilson
from openafm.annotation.statistics.outcomes import decide
from openafm.annotation.statistics.page import report_page, write_report
from openafm.annotation.statistics.ratings import Comparisons, Ratings, fit_ratings
from openafm.annotation.statistics.report import project_report


@pytest.mark.parametrize(("count", "total"), [(0, 1), (0, 40), (40, 40), (7, 11), (160, 250)])
def test_wilson_intervals_equal_statsmodels(count: int, total: int) -> None:
    assert wilson(count, total) == pytest.approx(proportion_confint(count, total, method="wilson"), abs=1e-12)


def test_intervals_without_values() -> None:
    assert wilson(0, 0) == (0, 1)
    assert all(map(math.isnan, bootstrap_mean([])))
    low, high = bootstrap_mean([1.0, 0.0] * 200)
    assert low == pytest.approx(0.45, abs=0.01)
    assert high == pytest.approx(0.55, abs=0.01)


@pytest.mark.parametrize("level", list(Level))
def test_alpha_equals_krippendorff(level: Level) -> None:
    # Krippendorff's example: four graders, twelve units, five values, some missing.
    missing = np.nan
    table = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, missing, missing, missing],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, missing, 3],
        [missing, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, missing],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, missing],
    ]
    units = [[value for value in unit if not np.isnan(value)] for unit in zip(*table, strict=True)]
    theirs = krippendorff.alpha(reliability_data=np.array(table), level_of_measurement=str(level))
    assert krippendorff_alpha(units, level) == pytest.approx(theirs, abs=1e-12)


def test_alpha_of_published_example_and_of_equal_values() -> None:
    units = [[1, 1, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4], [4, 4, 4, 4], [1, 1, 2, 1]]
    units += [[2, 2, 2, 2], [5, 5, 5], [1, 1], [3]]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)
    assert math.isnan(krippendorff_alpha([[1, 1], [1, 1]]))
    assert math.isnan(krippendorff_alpha([[1], [2]]))


def test_kappa_consensus_and_disagreement_of_small_cases() -> None:
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    assert math.isnan(cohens_kappa([(1, 1)]))
    units = [["a", "a"], ["a", "b"], ["a", "b", "b"], ["c"]]
    assert consensus_rate(units) == pytest.approx(2 / 3)
    assert disagreement_rate(units) == pytest.approx(1 - (2 + 0 + 2) / (2 + 2 + 6))


def test_ratings_without_ties_equal_choix() -> None:
    pairs = [
        Comparisons(first=0, second=1, wins=12, losses=8, ties=0),
        Comparisons(first=1, second=2, wins=15, losses=5, ties=0),
        Comparisons(first=0, second=2, wins=9, losses=2, ties=0),
    ]
    games = [(p.first, p.second) for p in pairs for _ in range(p.wins)]
    games += [(p.second, p.first) for p in pairs for _ in range(p.losses)]
    theirs = choix.ilsr_pairwise(3, games, max_iter=10_000, tol=1e-14)
    assert fit_ratings(3, pairs).scores == pytest.approx(theirs - theirs.mean(), abs=1e-9)


def test_davidson_ratings_of_two_systems_have_their_closed_form() -> None:
    ratings = fit_ratings(2, [Comparisons(first=0, second=1, wins=60, losses=15, ties=30)])
    assert ratings.scores == pytest.approx((math.log(4) / 2, -math.log(4) / 2))
    assert ratings.log_tie == pytest.approx(math.log(30 / math.sqrt(60 * 15)))
    difference_error = math.sqrt(1 / 60 + 1 / 15)
    assert ratings.errors == pytest.approx((difference_error / 2,) * 2)


def test_davidson_ratings_of_three_systems_expect_what_was_observed() -> None:
    pairs = [
        Comparisons(first=0, second=1, wins=12, losses=8, ties=5),
        Comparisons(first=1, second=2, wins=15, losses=5, ties=9),
        Comparisons(first=0, second=2, wins=9, losses=2, ties=14),
    ]
    assert_expects_what_was_observed(pairs, fit_ratings(3, pairs))


def assert_expects_what_was_observed(pairs: list[Comparisons], ratings: Ratings) -> None:
    """Check the score equations of the maximum: expected wins, and ties, equal the counts."""
    points: list[tuple[float, float]] = [(0.0, 0.0)] * 3
    ties = 0.0
    for pair in pairs:
        one, other = (math.exp(ratings.scores[system]) for system in (pair.first, pair.second))
        tie = 0.0 if ratings.log_tie is None else math.exp(ratings.log_tie) * math.sqrt(one * other)
        total = (pair.wins + pair.losses + pair.ties) / (one + other + tie)
        ties += total * tie
        for system, weight, wins in ((pair.first, one, pair.wins), (pair.second, other, pair.losses)):
            expected, observed = points[system]
            points[system] = expected + total * (weight + tie / 2), observed + wins + pair.ties / 2
    assert [expected for expected, _ in points] == pytest.approx([observed for _, observed in points], abs=1e-6)
    assert ties == pytest.approx(sum(pair.ties for pair in pairs), abs=1e-6)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [Comparisons(first=0, second=1, wins=5, losses=0, ties=0), Comparisons(first=1, second=2, wins=1, losses=1, ties=0)],
        [Comparisons(first=0, second=1, wins=5, losses=5, ties=1)],
        [Comparisons(first=n, second=n + 1, wins=0, losses=0, ties=4) for n in range(2)],
        [Comparisons(first=n, second=n + 1, wins=3, losses=0, ties=2) for n in range(2)],
    ],
)
def test_ratings_without_a_maximum_are_a_typed_error(pairs: list[Comparisons]) -> None:
    with pytest.raises(AnnotationError, match="no finite maximum"):
        fit_ratings(3, pairs)


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=3, max_size=3))
def test_ratings_of_any_counts_are_a_maximum_or_a_typed_error(counts: list[tuple[int, int, int]]) -> None:
    pairs = [
        Comparisons(first=first, second=second, wins=wins, losses=losses, ties=ties)
        for (first, second), (wins, losses, ties) in zip([(0, 1), (1, 2), (0, 2)], counts, strict=True)
    ]
    with contextlib.suppress(AnnotationError):
        assert_expects_what_was_observed(pairs, fit_ratings(3, pairs))


def simulated(folder: Path, num_items: int = 24, graders: int = 3, **settings: Any) -> JudgmentStore:
    """A project in which system a is better with probability 0.7, and graders err in 20 % of cases."""
    chance = random.Random(1)
    locales = ["en-US", "en-GB", "fr-FR"]
    items = [item(f"i{n}", locale=locales[n % 3], category=["Chat", "Open QA"][n % 2]) for n in range(num_items)]
    store = store_of(project_of(folder, items, overlap=graders, **settings))
    people = add_people(store, *(f"P{n}" for n in range(graders)))
    for task in store.project.tasks.values():
        truth = "first" if chance.random() < 0.7 else "second"
        for person in people:
            verdict = truth if chance.random() < 0.8 else chance.choice(["first", "second", "tie"])
            flags = (("unnatural_phrase",), ()) if verdict == "second" else ((), ())
            judge(store, task.key, person, verdict, satisfaction=(4, 3), flags=flags, seconds=30.0)
    return store


def test_a_report_has_groups_ratings_agreement_and_graders(tmp_path: Path) -> None:
    store = simulated(tmp_path)
    report = project_report(store)
    assert list(report["groups"]) == ["en-US", "English outside US", "PFIGSCJK"]
    assert report["counts"] | {"judged": 24, "judgments": 72, "graders": 3, "screened_out": 0} == report["counts"]
    (whole,) = report["all"]
    assert whole["first"] == "a"
    assert whole["win"]["count"] + whole["tie"]["count"] + whole["loss"]["count"] == 24
    assert whole["win"]["share"] > 0.5
    assert sum(rows[0]["comparisons"] for rows in report["categories"].values()) == 24
    assert [row["system"] for row in report["ratings"]["all"]] == ["a", "b"]
    assert 0.1 < report["agreement"]["alpha_winner"] < 0.9
    assert report["agreement"]["consensus_rate"] > 0.8
    assert report["satisfaction"]["a"] == {"grades": 72, "mean": 4.0, "satisfied": 1.0}
    assert report["flags"]["en-US"]["a"]["unnatural_phrase"] > 0
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert "P0" not in json.dumps(report)


@pytest.mark.slow
def test_the_report_is_written_as_page_and_figures(tmp_path: Path) -> None:
    store = simulated(tmp_path / "project", num_items=9, title="<Wave>")
    paths = write_report(project_report(store), tmp_path / "report")
    assert [path.name for path in paths] == ["report.html", "report.json", "preferred.png", "preferred.svg"]
    page = paths[0].read_text()
    assert "&lt;Wave&gt;" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "").split("base64,")[0]
    assert paths[2].read_bytes().startswith(b"\x89PNG")


def test_a_figure_shows_names_with_dollar_signs(tmp_path: Path) -> None:
    name, share = r"a$\frac$b", {"share": 0.5, "interval": [0.4, 0.6]}
    row = {"first": name, "second": "c", "comparisons": 2, "win": share, "tie": share, "loss": share}
    write_figure({name: [row]}, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_bytes()


def test_a_project_without_judgments_has_a_report(tmp_path: Path) -> None:
    report = project_report(store_of(project_of(tmp_path)))
    assert (report["all"], report["groups"], report["ratings"]) == ([], {}, {})
    assert "0 of 4 comparisons" in report_page(report)


def test_reviewers_and_majorities_decide(tmp_path: Path) -> None:
    store = store_of(project_of(tmp_path, overlap=3))
    people = add_people(store, "A", "B", "C")
    verdicts = {"i0": ("first", "first", "second"), "i1": ("first", "second", "tie"), "i2": ("both_bad", "tie", "second")}
    for task in store.project.tasks.values():
        for person, verdict in zip(people, verdicts.get(task.item.id, ()), strict=False):
            judge(store, task.key, person, verdict)
    (reviewer,) = add_people(store, "R")
    contested = next(task for task in store.project.tasks.values() if task.item.id == "i1")
    winners = {decision.task.item.id: str(decision.winner) for decision in decide(store.project, store.all())}
    assert winners == {"i0": "first", "i1": "tie", "i2": "tie"}
    store.submit(contested, reviewer, Answers(verdict=Verdict.SECOND, strength=1), kind=Kind.ADJUDICATION)
    decision = next(d for d in decide(store.project, store.all()) if d.task == contested)
    assert (decision.winner, decision.is_adjudicated) == (Verdict.SECOND, True)


def judgments_of(project: Project, verdicts: dict[str, Callable[[int, Task], str]]) -> list[Judgment]:
    """Return judgments of people by name: functions of the number of the comparison."""
    return [
        Judgment(
            id=number,
            task=task.key,
            item=task.item.id,
            first=task.first,
            second=task.second,
            person=person,
            kind=Kind.GRADE,
            left=project.left(task, person),
            time=0.0,
            revision=1,
            verdict=Verdict(verdict(number, task)),
            strength=1 if verdict(number, task) in ("first", "second") else 0,
        )
        for number, task in enumerate(project.tasks.values())
        for person, verdict in verdicts.items()
    ]


def test_careless_graders_are_flagged(tmp_path: Path) -> None:
    project = project_of(tmp_path, [item(f"i{n}") for n in range(80)])

    def truth(number: int, _task: Task) -> str:
        return "first" if number % 2 else "second"

    verdicts: dict[str, Callable[[int, Task], str]] = {f"good{n}": truth for n in range(4)}
    verdicts["flood"] = lambda number, task: "tie"
    verdicts["lefty"] = lambda number, task: "first" if project.left(task, "lefty") == task.first else "second"
    verdicts["drifting"] = lambda number, task: truth(number, task) if number < 40 else "both_bad"
    reports = grader_reports(project, judgments_of(project, verdicts))
    assert [report.flags for report in reports] == [()] * 4 + [("tie flood",), ("one side",), ("drift",)]
    assert (reports[-1].agreement_early, reports[-1].agreement_late) == (1.0, 0.0)
    assert "drifting" not in str(reports)


def test_people_who_are_screened_out_do_not_count(tmp_path: Path) -> None:
    items = [item(f"gold{n}", gold="a") for n in range(5)] + [item("i")]
    store = store_of(project_of(tmp_path, items))
    good, bad = add_people(store, "good", "bad")
    for task in store.project.tasks.values():
        judge(store, task.key, good, "first")
        judge(store, task.key, bad, "second")
    report = project_report(store)
    assert (report["counts"]["screened_out"], report["counts"]["judgments"]) == (1, 6)
    assert report["all"][0]["win"]["count"] == 1
    assert report["warnings"] == ["grader 2: screened out"]
