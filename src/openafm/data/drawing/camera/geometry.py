"""Where points of a drawing are in its photograph, and the pixels that follow from it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from openafm.data.drawing.camera.conditions import Condition
from openafm.data.images.documents import Box

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    Points: TypeAlias = NDArray[np.float64]

_CELLS = 20
_BORDER_POINTS = 25  # bends between them move a border by less than a pixel
_EDGE_POINTS = 24


class Geometry:
    """Where points of the drawing are in the photograph: bent by waves and folds, then seen in perspective."""

    def __init__(
        self,
        source: tuple[int, int],
        size: tuple[int, int],
        corners: Sequence[Sequence[float]],
        waves: Sequence[Sequence[float]] = (),
        folds: Sequence[Sequence[float]] = (),
    ) -> None:
        import numpy as np

        self.source = source
        self.width, self.height = size
        self._corners = [[float(value) for value in corner] for corner in corners]
        self._waves = [[float(value) for value in wave] for wave in waves]
        self._folds = [[float(value) for value in fold] for fold in folds]
        width, height = source
        flat = [(0, 0), (width, 0), (width, height), (0, height)]
        self._forward = _homography(flat, self._corners)
        self._backward = np.linalg.inv(self._forward).astype(np.float64)

    def log(self) -> dict[str, object]:
        """The numbers from which `Geometry.of_log` builds it again."""
        return {
            "source": list(self.source),
            "size": [self.width, self.height],
            "corners": self._corners,
            "waves": self._waves,
            "folds": self._folds,
        }

    @classmethod
    def of_log(cls, log: Mapping[str, list[list[float]]]) -> Geometry:
        """Return the geometry that `log` describes."""
        source, size = ([int(value) for value in log[name]] for name in ("source", "size"))  # type: ignore[call-overload]
        return cls((source[0], source[1]), (size[0], size[1]), log["corners"], log["waves"], log["folds"])

    def shift(self, points: Points) -> Points:
        """Return how far the bends move points of the drawing."""
        import numpy as np

        moved = np.zeros_like(points)
        for amplitude, angle, wave_x, wave_y, phase in self._waves:
            height = amplitude * np.sin(points[:, 0] * wave_x + points[:, 1] * wave_y + phase)
            moved += height[:, None] * np.array([math.cos(angle), math.sin(angle)])
        for axis, at, slope, reach in self._folds:
            distance = points[:, int(axis)] - at
            moved[:, 1 - int(axis)] += slope * np.clip(reach - np.abs(distance), 0, None)
        return moved

    def to_photograph(self, points: Points) -> Points:
        """Return points of the drawing as points of the photograph."""
        return _applied(self._forward, points + self.shift(points))

    def to_drawing(self, points: Points) -> Points:
        """Return points of the photograph as points of the drawing."""
        flat = _applied(self._backward, points)
        found = flat
        for _ in range(6):
            found = flat - self.shift(found)
        return found

    def points(self, points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        """Return points of the drawing as points of the photograph, rounded."""
        import numpy as np

        if not points:
            return ()
        mapped = self.to_photograph(np.array(points, dtype=np.float64)).round(1)
        return tuple((float(x), float(y)) for x, y in mapped)

    def boxes(self, boxes: Sequence[Box]) -> list[Box]:
        """Return the boxes around boxes of the drawing, within the photograph."""
        import numpy as np

        if not boxes:
            return []
        steps = np.linspace(0, 1, _BORDER_POINTS)
        rim = np.array([(x, y) for x in steps for y in steps if x in (0, 1) or y in (0, 1)])
        flat = np.array(boxes, dtype=np.float64)
        low, high = flat[:, :2], flat[:, 2:]
        points = low[:, None] + (high - low)[:, None] * rim
        mapped = self.to_photograph(points.reshape(-1, 2)).reshape(len(boxes), -1, 2)
        low, high = mapped.min(axis=1), mapped.max(axis=1)
        low = np.clip(low - 0.5, 0, (self.width, self.height)).round(1)
        high = np.clip(high + 0.5, 0, (self.width, self.height)).round(1)
        return [(float(a), float(b), float(c), float(d)) for (a, b), (c, d) in zip(low, high, strict=True)]

    def warp(self, image: Image) -> Image:
        """Return an image of the drawing's size as the photograph shows it; black around it."""
        import numpy as np
        from PIL.Image import Resampling, Transform

        size = (self.width, self.height)
        if not self._waves and not self._folds:
            coefficients = tuple(float(value) for value in (self._backward / self._backward[2, 2]).ravel()[:8])
            return image.transform(size, Transform.PERSPECTIVE, coefficients, Resampling.BILINEAR)
        outline = np.array(self.outline())
        (left, top), (right, bottom) = (
            (np.floor(outline.min(axis=0)) - 3).astype(int),
            (np.ceil(outline.max(axis=0)) + 3).astype(int),
        )
        columns = np.linspace(max(left, 0), min(right, self.width), _CELLS + 1).astype(int)
        rows = np.linspace(max(top, 0), min(bottom, self.height), _CELLS + 1).astype(int)
        grid = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2).astype(np.float64)
        found = self.to_drawing(grid).reshape(_CELLS + 1, _CELLS + 1, 2)
        mesh = []
        for row in range(_CELLS):
            for column in range(_CELLS):
                box = (int(columns[column]), int(rows[row]), int(columns[column + 1]), int(rows[row + 1]))
                corners = (found[row, column], found[row + 1, column], found[row + 1, column + 1], found[row, column + 1])
                mesh.append((box, tuple(np.concatenate(corners).tolist())))
        return image.transform(size, Transform.MESH, mesh, Resampling.BILINEAR)

    def outline(self) -> list[tuple[float, float]]:
        """Return the edge of the sheet in the photograph, without its outermost pixels, as a polygon."""
        import numpy as np

        width, height = self.source
        steps = np.linspace(0, 1, _EDGE_POINTS, endpoint=False)
        sides = [[(t, 0) for t in steps], [(1, t) for t in steps], [(1 - t, 1) for t in steps], [(0, 1 - t) for t in steps]]
        edge = 1 + np.array([point for side in sides for point in side]) * (width - 2, height - 2)
        return [(float(x), float(y)) for x, y in self.to_photograph(edge)]


def draw_geometry(rng: random.Random, width: int, height: int, condition: Condition) -> Geometry:
    """Return how a drawing lies in a photograph."""
    share = rng.uniform(*condition.scale)
    angle = math.radians(rng.uniform(-condition.turn, condition.turn))
    cosine, sine = math.cos(angle), math.sin(angle)
    tilt = condition.tilt * min(width, height)
    corners = []
    for x, y in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)):
        x, y = x * width, y * height
        corners.append((x * cosine - y * sine + rng.uniform(-tilt, tilt), x * sine + y * cosine + rng.uniform(-tilt, tilt)))
    low = [min(corner[axis] for corner in corners) for axis in (0, 1)]
    high = [max(corner[axis] for corner in corners) for axis in (0, 1)]
    scale = share * width / (high[0] - low[0])
    size = (width, max(height, round((high[1] - low[1]) * scale / share)))  # strips that are turned need more height
    middle = [(low[axis] + high[axis]) / 2 for axis in (0, 1)]
    room = [size[axis] - (high[axis] - low[axis]) * scale for axis in (0, 1)]
    at = [size[axis] / 2 + rng.uniform(-0.4, 0.4) * room[axis] for axis in (0, 1)]
    placed = [[(corner[axis] - middle[axis]) * scale + at[axis] for axis in (0, 1)] for corner in corners]
    waves = []
    if condition.bend[1]:
        for _ in range(4):
            length = width * rng.uniform(0.2, 0.6)
            direction = rng.uniform(0, 2 * math.pi)
            frequency = 2 * math.pi / length
            waves.append(
                [
                    width * rng.uniform(*condition.bend),
                    rng.uniform(0, 2 * math.pi),
                    frequency * math.cos(direction),
                    frequency * math.sin(direction),
                    rng.uniform(0, 2 * math.pi),
                ]
            )
    folds = []
    for fold in range(condition.folds):
        axis = fold % 2
        length = (width, height)[axis]
        folds.append([axis, length * rng.uniform(0.4, 0.6), rng.uniform(-0.03, 0.03), length * 0.3])
    return Geometry((width, height), size, placed, waves, folds)


def _homography(source: Sequence[Sequence[float]], target: Sequence[Sequence[float]]) -> Points:
    import numpy as np

    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved = np.linalg.solve(np.array(rows, dtype=np.float64), np.array(values, dtype=np.float64))
    matrix: Points = np.append(solved, 1.0).reshape(3, 3)
    return matrix


def _applied(matrix: Points, points: Points) -> Points:
    mapped: Points = points @ matrix[:, :2].T + matrix[:, 2]
    return mapped[:, :2] / mapped[:, 2:]
