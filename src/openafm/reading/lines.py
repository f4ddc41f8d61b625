"""Lines from letters: neighbors are linked to runs, and runs to lines in reading order.

A photograph shows the page turned and in perspective. Runs that a first pass finds give the slope of lines at each place;
with it the page is set upright, and linked again. Of two views that have the same letters, the surer one counts.

Shapes: N letters, R runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from openafm.models.vision.letters import SIZES, usual_width
from openafm.reading.letters import Letter
from openafm.reading.spelling import Spelling

WIDEST_LINK = 24.0
"""Pixels of a view from a letter to the next of its line: the largest font has 30 pixels, and spaces are letters too."""
STROKES = "1Il|!-_.,:;'`/\\"
"""A lone letter of these is a mark on the page more often than text."""
_LOOSE, _TIGHT = 9.5, 9.0  # pixels of a view that neighbors may differ in height: a cell has 8
_STEEPEST = 0.4
_USUAL_WIDTH = 0.52  # of a letter, in sizes of the font
_WIDEST_GAP = 0.95  # between two letters of a line, beside their usual widths, in sizes of the font
_LEAST_LONE = 0.8  # probability of a letter that is a line by itself
_OVERLAP, _SAME_OVERLAP = 0.5, 0.6  # different and equal letters nearer than this share of their usual distance are one
_FEWEST = 4  # letters of a run whose slope counts
_FARTHEST, _FEWEST_RUNS = 0.12, 5  # from the usual slope; runs for a slope that is not the same everywhere
_PULL = 0.02  # towards one slope for the page
_SAME_PLACE = 6.0  # pixels of the coarser of two views, in which they show the same letter
_MOST_COVERED = 0.5  # of the letters of a run, by those of another view


@dataclass(frozen=True, kw_only=True)
class TextLine:
    """A line of text on a page that is set upright: where it begins and ends, its middle, and the size of its font."""

    text: str
    left: float
    right: float
    y: float
    font_size: float
    probability: float


def lines_of(views: Sequence[Sequence[Letter]], spelling: Spelling | None = None) -> list[TextLine]:
    """Return the lines of a page from the letters of its views, in no order; by default without n-grams."""
    spelling = spelling or Spelling()
    first = _without_doubles([run for view in views for run in _runs(view, _LOOSE, _STEEPEST)])
    slope = Slope.of(first)
    upright = [[replace(letter, y=slope.upright(letter.x, letter.y)) for letter in view] for view in views]
    runs = _without_doubles([run for view in upright for run in _runs(view, _TIGHT, 0.0)])
    return [line for run in runs for line in _lines(run, spelling)]


@dataclass(frozen=True, kw_only=True)
class Slope:
    """The slope of lines at each place of a page, `level + by_x * x + by_y * y`."""

    level: float = 0.0
    by_x: float = 0.0
    by_y: float = 0.0

    @classmethod
    def of(cls, runs: Iterable[Sequence[Letter]]) -> Slope:
        """Return the slope that fits the longer runs best; runs far from the median do not count."""
        known_R4 = np.array([_direction(run) for run in runs if len(run) >= _FEWEST]).reshape(-1, 4)
        if not len(known_R4):
            return cls()
        usual = float(np.median(np.repeat(known_R4[:, 2], known_R4[:, 3].astype(int))))
        x_R, y_R, slope_R, weight_R = known_R4[np.abs(known_R4[:, 2] - usual) < _FARTHEST].T
        if len(x_R) < _FEWEST_RUNS:
            return cls(level=usual)
        extent = max(x_R.max(), y_R.max())  # of the page, so that its number of pixels does not matter
        inputs_R3 = np.stack([np.ones(len(x_R)), x_R / extent, y_R / extent], 1)
        pull_33 = np.diag([0.0, _PULL, _PULL]) * len(x_R)
        squares_33 = inputs_R3.T @ (weight_R[:, None] * inputs_R3)
        level, by_x, by_y = np.linalg.solve(squares_33 + pull_33, inputs_R3.T @ (weight_R * slope_R)).tolist()
        return cls(level=level, by_x=by_x / extent, by_y=by_y / extent)

    def upright(self, x: float, y: float) -> float:
        """Return the height of a place where lines are level."""
        return y - x * (self.level + self.by_x * x / 2 + self.by_y * y)


def _direction(run: Sequence[Letter]) -> tuple[float, float, float, float]:
    """Return the middle of a run, its slope and its number of letters."""
    x_N, y_N = np.array([letter.x for letter in run]), np.array([letter.y for letter in run])
    centered_N = x_N - x_N.mean()
    return float(x_N.mean()), float(y_N.mean()), float(centered_N @ y_N / max(centered_N @ centered_N, 1e-6)), len(run)


def _runs(letters: Sequence[Letter], step: float, steepest: float) -> list[list[Letter]]:
    """Return letters of a view linked to the nearest one on their right that has no nearer one on its left."""
    by_x = sorted(letters, key=lambda letter: letter.x)
    candidates = []
    for index, one in enumerate(by_x):
        for other_index in range(index + 1, len(by_x)):
            other = by_x[other_index]
            right, down = other.x - one.x, abs(other.y - one.y)
            if right > WIDEST_LINK * one.unit:
                break
            if down < step * one.unit + steepest * right:
                candidates.append((right + down, index, other_index))
    following: dict[int, int] = {}
    has_before: set[int] = set()
    for _, index, other_index in sorted(candidates):
        if index not in following and other_index not in has_before:
            following[index] = other_index
            has_before.add(other_index)
    runs = []
    for index in range(len(by_x)):
        if index not in has_before:
            run = [index]
            while run[-1] in following:
                run.append(following[run[-1]])
            runs.append([by_x[each] for each in run])
    return runs


def _without_doubles(runs: Sequence[Sequence[Letter]]) -> list[Sequence[Letter]]:
    """Return the runs without those that another view has too, and with more and surer letters."""
    kept: list[Sequence[Letter]] = []
    places_N3: NDArray[np.float64] = np.empty((0, 3))
    for run in sorted(runs, key=_sureness, reverse=True):
        own_N3 = np.array([(letter.x, letter.y, letter.unit) for letter in run])
        reach_N = _SAME_PLACE * np.maximum(places_N3[:, 2], run[0].unit)
        is_near_N = (places_N3[:, 1] > own_N3[:, 1].min() - reach_N) & (places_N3[:, 1] < own_N3[:, 1].max() + reach_N)
        near_N3 = places_N3[is_near_N]
        unit_NN = np.maximum(own_N3[:, None, 2], near_N3[None, :, 2])
        distance_NN = np.abs(own_N3[:, None, :2] - near_N3[None, :, :2]).max(-1)
        is_other_view = own_N3[:, None, 2] != near_N3[None, :, 2]
        covered_N = (is_other_view & (distance_NN < _SAME_PLACE * unit_NN)).any(1)
        if covered_N.mean() <= _MOST_COVERED:
            kept.append(run)
            places_N3 = np.concatenate([places_N3, own_N3])
    return kept


def _sureness(run: Sequence[Letter]) -> float:
    return sum(letter.probability * float(letter.classes_K.max()) ** 2 for letter in run)


def _lines(run: Sequence[Letter], spelling: Spelling) -> Iterator[TextLine]:
    """Yield the lines of a run, which is divided where two letters are far apart."""
    steps = [after.x - before.x for before, after in pairwise(run)]
    unit = run[0].unit
    font_size = median(steps) / _USUAL_WIDTH if len(steps) > 2 else 18.0 * unit
    font_size = min(max(font_size, SIZES[0] * unit), SIZES[1] * unit)
    part: list[Letter] = []
    for letter in _without_close(run, font_size):
        if part and (letter.x - part[-1].x) / font_size - _room(part[-1], letter) > _WIDEST_GAP:
            yield from _line(part, font_size, spelling)
            part = []
        part.append(letter)
    yield from _line(part, font_size, spelling)


def _without_close(run: Sequence[Letter], font_size: float) -> list[Letter]:
    """Return the letters of a run; of two that overlap, which are one letter found twice, the surer one."""
    kept: list[Letter] = []
    for letter in run:
        if kept and letter.x - kept[-1].x < _overlap(kept[-1], letter) * font_size * _room(kept[-1], letter):
            kept[-1] = max(kept[-1], letter, key=lambda each: each.probability)
        else:
            kept.append(letter)
    return kept


def _overlap(before: Letter, after: Letter) -> float:
    return _SAME_OVERLAP if before.character == after.character else _OVERLAP


def _room(before: Letter, after: Letter) -> float:
    """Return the usual distance of two letters in sizes of the font."""
    return _USUAL_WIDTH * (usual_width(before.character) + usual_width(after.character)) / 2


def _line(part: Sequence[Letter], font_size: float, spelling: Spelling) -> Iterator[TextLine]:
    text = spelling.text(part)
    is_mark = len(text) == 1 and (text in STROKES or max(letter.probability for letter in part) < _LEAST_LONE)
    if text and not is_mark:
        yield TextLine(
            text=text,
            left=min(letter.x for letter in part),
            right=max(letter.x for letter in part),
            y=sum(letter.y for letter in part) / len(part),
            font_size=font_size,
            probability=sum(letter.probability for letter in part) / len(part),
        )
