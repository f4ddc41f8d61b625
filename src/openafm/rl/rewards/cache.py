"""Scores on disk, so that a sample is not scored twice by the same reward: judges and sandboxes are slow."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from openafm.core.config import dump
from openafm.rl.rewards.base import RewardConfig
from openafm.rl.trajectories import Score

_BUSY_S = 60.0


class ScoreCache:
    """Scores in a SQLite file, by the reward's class, version and config and by the digest of the sample.

    Several processes may share a file. Each thread opens its own.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, score TEXT NOT NULL) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database.close()

    def read(self, reward: RewardConfig, digests: Iterable[str]) -> dict[str, Score]:
        """Return the stored scores of samples, by their digests."""
        prefix, found = _prefix(reward), {}
        for digest in digests:
            row = self._database.execute("SELECT score FROM scores WHERE key = ?", (prefix + digest,)).fetchone()
            if row is not None:
                values = json.loads(row[0])
                found[digest] = Score(reward=values["reward"], terms=values["terms"])
        return found

    def write(self, reward: RewardConfig, scores: Mapping[str, Score]) -> None:
        """Store scores, by the digests of their samples."""
        prefix = _prefix(reward)
        rows = [
            (prefix + digest, json.dumps({"reward": score.reward, "terms": dict(score.terms)}))
            for digest, score in scores.items()
        ]
        self._database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", rows)


def _prefix(reward: RewardConfig) -> str:
    text = f"{type(reward).__name__} {reward.VERSION} {dump(reward)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ":"
