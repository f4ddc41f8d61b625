"""Statistics of grading against other packages, on simulated graders.

Graders of different skill compare systems of known strength; some judgments are missing. Compared are

    intervals    Wilson                                   statsmodels
    alpha        Krippendorff, nominal, ordinal, interval krippendorff
    kappa        Cohen                                    statsmodels
    ratings      Bradley-Terry without ties               choix
    ties         Bradley-Terry with ties (Davidson) and its standard errors, as a log-linear model   statsmodels

`largest_difference` over all of them and all rounds is at most 1e-9. A full run takes about a minute.

    python benchmarks/grading_statistics.py [--quick] [--json]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import choix
import krippendorff
import numpy as np
import statsmodels.api
from shared.reporting import benchmark_parser, hand_in
from statsmodels.stats.inter_rater import cohens_kappa as peer_kappa
from statsmodels.stats.proportion import proportion_confint

from openafm.annotation.statistics.agreement import Level, cohens_kappa, krippendorff_alpha
from openafm.annotation.statistics.intervals import wilson
from openafm.annotation.statistics.ratings import Comparisons, Ratings, fit_ratings

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "grading_statistics.json"


def simulated_counts(generator: np.random.Generator, num_systems: int, log_tie: float | None) -> list[Comparisons]:
    """Return comparisons of systems with random strengths after Davidson's model."""
    strength_S = generator.normal(0, 0.7, num_systems)
    pairs = []
    for first in range(num_systems):
        for second in range(first + 1, num_systems):
            utilities = [
                strength_S[first],
                strength_S[second],
                (strength_S[first] + strength_S[second]) / 2 + (log_tie or 0),
            ]
            odds_O = np.exp(utilities[: 2 if log_tie is None else 3])
            wins, losses, *ties = generator.multinomial(generator.integers(60, 300), odds_O / odds_O.sum())
            pairs.append(Comparisons(first=first, second=second, wins=int(wins), losses=int(losses), ties=int(sum(ties))))
    return pairs


def simulated_labels(generator: np.random.Generator, num_graders: int, num_items: int) -> list[list[float]]:
    """Return the labels of each item from 1 to 5 by graders who err and skip."""
    truth_I = generator.integers(1, 6, num_items)
    errs_GI = generator.random((num_graders, num_items)) < generator.uniform(0.1, 0.5, (num_graders, 1))
    labels_GI = np.where(errs_GI, generator.integers(1, 6, (num_graders, num_items)), truth_I).astype(float)
    labels_GI[generator.random((num_graders, num_items)) < 0.3] = np.nan
    return [[float(label) for label in column if not np.isnan(label)] for column in labels_GI.T]


def interval_difference(generator: np.random.Generator) -> float:
    total = int(generator.integers(1, 500))
    count = int(generator.integers(0, total + 1))
    return float(np.abs(np.subtract(wilson(count, total), proportion_confint(count, total, method="wilson"))).max())


def alpha_difference(generator: np.random.Generator) -> float:
    units = simulated_labels(generator, 6, 60)
    counts_UV = np.array([[Counter(unit)[value] for value in range(1, 6)] for unit in units])
    differences = []
    for level in Level:
        theirs = krippendorff.alpha(value_counts=counts_UV, value_domain=[1, 2, 3, 4, 5], level_of_measurement=str(level))
        differences.append(abs(krippendorff_alpha(units, level) - theirs))
    return max(differences)


def kappa_difference(generator: np.random.Generator) -> float:
    table_VV = generator.integers(0, 30, (3, 3)) + 1
    pairs = [(one, other) for one in range(3) for other in range(3) for _ in range(table_VV[one, other])]
    return abs(cohens_kappa(pairs) - float(peer_kappa(table_VV, return_results=False)))


def rating_difference(generator: np.random.Generator) -> float:
    pairs = simulated_counts(generator, 5, None)
    ours = fit_ratings(5, pairs)
    wins = [(pair.first, pair.second) for pair in pairs for _ in range(pair.wins)]
    losses = [(pair.second, pair.first) for pair in pairs for _ in range(pair.losses)]
    theirs_S = choix.ilsr_pairwise(5, wins + losses, alpha=0, max_iter=10_000, tol=1e-14)
    return float(np.abs(np.array(ours.scores) - (theirs_S - theirs_S.mean())).max())


def tie_difference(generator: np.random.Generator) -> float:
    pairs = simulated_counts(generator, 4, float(generator.uniform(-1.5, 0.5)))
    ours, theirs = fit_ratings(4, pairs), log_linear_ratings(4, pairs)
    assert ours.log_tie is not None
    assert theirs.log_tie is not None
    differences = [*np.subtract(ours.scores, theirs.scores), *np.subtract(ours.errors, theirs.errors)]
    return float(np.abs([*differences, ours.log_tie - theirs.log_tie]).max())


def log_linear_ratings(num_systems: int, pairs: list[Comparisons]) -> Ratings:
    """Return Davidson's model as statsmodels fits it: Poisson counts with one constant for each pair."""
    rows, counts = [], []
    for index, pair in enumerate(pairs):
        for outcome, count in enumerate((pair.wins, pair.losses, pair.ties)):
            row = np.zeros(num_systems + 1 + len(pairs))
            row[pair.first] += {0: 1.0, 1: 0.0, 2: 0.5}[outcome]
            row[pair.second] += {0: 0.0, 1: 1.0, 2: 0.5}[outcome]
            row[num_systems] = outcome == 2
            row[num_systems + 1 + index] = 1
            rows.append(row[1:])  # the first system's score is 0
            counts.append(count)
    model = statsmodels.api.GLM(np.array(counts), np.array(rows), family=statsmodels.api.families.Poisson())
    fit = model.fit(tol=1e-15, maxiter=200)
    scores_S = np.concatenate([[0.0], fit.params[: num_systems - 1]])
    covariance_SS = np.zeros((num_systems, num_systems))
    covariance_SS[1:, 1:] = fit.cov_params()[: num_systems - 1, : num_systems - 1]
    centering_SS = np.eye(num_systems) - 1 / num_systems
    errors_S = np.sqrt(np.diag(centering_SS @ covariance_SS @ centering_SS.T))
    scores = tuple(map(float, scores_S - scores_S.mean()))
    return Ratings(scores=scores, errors=tuple(map(float, errors_S)), log_tie=float(fit.params[num_systems - 1]))


PARTS = {
    "intervals": interval_difference,
    "alpha": alpha_difference,
    "kappa": kappa_difference,
    "ratings": rating_difference,
    "ties": tie_difference,
}


def main() -> None:
    arguments = benchmark_parser(__doc__, "10 rounds instead of 200").parse_args()
    rounds = 10 if arguments.quick else 200
    generator = np.random.default_rng(1)
    result: dict[str, float] = {}
    for name, difference in PARTS.items():
        result[name] = max(difference(generator) for _ in range(rounds))
        print(f"{name}: largest difference {result[name]:.1e} over {rounds} rounds", file=sys.stderr)
    result = {"largest_difference": max(result.values()), **result, "rounds": rounds}
    hand_in({"figures": result}, REPORT, arguments)


if __name__ == "__main__":
    main()
