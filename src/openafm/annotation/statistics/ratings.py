"""Ratings of systems from comparisons: Bradley-Terry with ties after Davidson.

    P(i wins) = p_i / (p_i + p_j + n sqrt(p_i p_j)),  P(tie) = n sqrt(p_i p_j) / (p_i + p_j + n sqrt(p_i p_j))

With utilities log p_i, log p_j and log n + (log p_i + log p_j) / 2 this is a multinomial logit, so the log-likelihood is
concave and Newton's method finds its maximum. Without ties it is the plain Bradley-Terry model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from openafm.annotation.errors import AnnotationError
from openafm.annotation.statistics.intervals import LEVEL

_MAX_STEPS = 200
_TOLERANCE = 1e-13


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """Counts of the comparisons of two systems, given as indices."""

    first: int
    second: int
    wins: int
    losses: int
    ties: int


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Fitted ratings.

    Attributes:
        scores: log p of each system; their mean is 0.
        errors: standard errors of the scores.
        log_tie: log n; None if there are no ties.
    """

    scores: tuple[float, ...]
    errors: tuple[float, ...]
    log_tie: float | None

    def intervals(self, level: float = LEVEL) -> list[tuple[float, float]]:
        """Return the normal interval of each score."""
        z = NormalDist().inv_cdf((1 + level) / 2)
        return [(score - z * error, score + z * error) for score, error in zip(self.scores, self.errors, strict=True)]


def fit_ratings(num_systems: int, pairs: Iterable[Comparisons]) -> Ratings:
    """Return the ratings of maximum likelihood.

    Raises:
        AnnotationError: there is no maximum: some systems only win against the others, or are not compared with them,
            or wins go one way only beside ties.
    """
    pairs = [pair for pair in pairs if pair.wins + pair.losses + pair.ties]
    _check_connected(num_systems, pairs)
    has_ties = any(pair.ties for pair in pairs)
    if has_ties and not _bounds_ties(num_systems, pairs):
        raise AnnotationError(
            "the ratings have no finite maximum: beside the ties, wins go one way only; grade more comparisons"
        )
    utilities_POK, counts_PO = _design(num_systems, pairs, has_ties)
    values_K = np.zeros(utilities_POK.shape[-1])
    hessian_KK = np.zeros((len(values_K), len(values_K)))
    for _ in range(_MAX_STEPS):
        gradient_K, hessian_KK = _derivatives(utilities_POK, counts_PO, values_K, num_systems)
        step_K = np.linalg.solve(hessian_KK, gradient_K)
        step_K *= min(1.0, 2.0 / max(float(np.abs(step_K).max()), 1e-300))  # far from the maximum, full steps overshoot
        values_K = values_K + step_K
        if float(np.abs(step_K).max()) < _TOLERANCE:
            break
    covariance_KK = np.linalg.inv(hessian_KK) - _gauge(len(values_K), num_systems)
    errors_K = np.sqrt(np.maximum(np.diag(covariance_KK), 0))
    scores_S = values_K[:num_systems] - values_K[:num_systems].mean()
    return Ratings(
        scores=tuple(map(float, scores_S)),
        errors=tuple(map(float, errors_K[:num_systems])),
        log_tie=float(values_K[-1]) if has_ties else None,
    )


def _design(
    num_systems: int, pairs: Sequence[Comparisons], has_ties: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the coefficients [pair, outcome, parameter] of the utilities, and the counts [pair, outcome]."""
    utilities_POK = np.zeros((len(pairs), 2 + has_ties, num_systems + has_ties))
    counts_PO = np.zeros((len(pairs), 2 + has_ties))
    for index, pair in enumerate(pairs):
        utilities_POK[index, 0, pair.first] = utilities_POK[index, 1, pair.second] = 1
        counts_PO[index, :2] = pair.wins, pair.losses
        if has_ties:
            utilities_POK[index, 2, [pair.first, pair.second]] = 0.5
            utilities_POK[index, 2, -1] = 1
            counts_PO[index, 2] = pair.ties
    return utilities_POK, counts_PO


def _derivatives(
    utilities_POK: npt.NDArray[np.float64],
    counts_PO: npt.NDArray[np.float64],
    values_K: npt.NDArray[np.float64],
    num_systems: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return gradient and negative Hessian of the log-likelihood. A term for the sum of the scores makes it regular."""
    logits_PO = utilities_POK @ values_K
    odds_PO = np.exp(logits_PO - logits_PO.max(axis=1, keepdims=True))
    shares_PO = odds_PO / odds_PO.sum(axis=1, keepdims=True)
    totals_P1 = counts_PO.sum(axis=1, keepdims=True)
    gradient_K = np.einsum("pok,po->k", utilities_POK, counts_PO - totals_P1 * shares_PO)
    mean_PK = np.einsum("pok,po->pk", utilities_POK, shares_PO)
    second_KK = np.einsum("pok,pol,po->kl", utilities_POK, utilities_POK, totals_P1 * shares_PO)
    hessian_KK = second_KK - np.einsum("pk,pl,p->kl", mean_PK, mean_PK, totals_P1[:, 0])
    gradient_K[:num_systems] -= values_K[:num_systems].mean()
    return gradient_K, hessian_KK + _gauge(len(values_K), num_systems)


def _gauge(num_values: int, num_systems: int) -> npt.NDArray[np.float64]:
    """Return the matrix of the mean over systems; its own inverse on the direction that the data leave free."""
    gauge_KK = np.zeros((num_values, num_values))
    gauge_KK[:num_systems, :num_systems] = 1 / num_systems
    return gauge_KK


def _check_connected(num_systems: int, pairs: Sequence[Comparisons]) -> None:
    """Raise unless each system reaches each other one over wins and ties."""
    beats: list[set[int]] = [set() for _ in range(num_systems)]
    for pair in pairs:
        if pair.wins or pair.ties:
            beats[pair.first].add(pair.second)
        if pair.losses or pair.ties:
            beats[pair.second].add(pair.first)
    loses_to: list[set[int]] = [{i for i in range(num_systems) if j in beats[i]} for j in range(num_systems)]
    if any(len(_reached(edges)) < num_systems for edges in (beats, loses_to)):
        raise AnnotationError(
            "the ratings have no finite maximum: some systems only win, only lose, or are not compared with the others; "
            "grade more comparisons"
        )


def _bounds_ties(num_systems: int, pairs: Sequence[Comparisons]) -> bool:
    """Return whether the share of ties has a finite maximum.

    It has none if scores exist in which each winner leads by 1 or more and tied systems differ by 1 or less: with all scores
    and the tie parameter multiplied, the likelihood only grows. Such scores exist unless a cycle has more wins than ties
    (difference constraints, Bellman-Ford).
    """
    edges = [(pair.first, pair.second, -1) for pair in pairs if pair.wins]
    edges += [(pair.second, pair.first, -1) for pair in pairs if pair.losses]
    edges += [edge for pair in pairs if pair.ties for edge in ((pair.first, pair.second, 1), (pair.second, pair.first, 1))]
    distances = [0] * num_systems
    for _ in range(num_systems):
        for start, end, length in edges:
            distances[end] = min(distances[end], distances[start] + length)
    return any(distances[start] + length < distances[end] for start, end, length in edges)


def _reached(edges: Sequence[set[int]]) -> set[int]:
    """Return the systems that a path leads to from the first one."""
    reached, waiting = {0}, [0]
    while waiting:
        new = edges[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached
