"""Tables of grading."""

from __future__ import annotations

import sqlalchemy as sql

from openafm.annotation.database import Schema
from openafm.annotation.people.tables import people

_TABLES = sql.MetaData()


def _columns(*keys: str) -> tuple[sql.Column[str], ...]:
    return tuple(sql.Column(name, sql.String, nullable=False) for name in keys)


def _person() -> sql.Column[str]:
    return sql.Column("person", sql.String, sql.ForeignKey(people.c.id, ondelete="CASCADE"), nullable=False)


judgments = sql.Table(
    "judgments",
    _TABLES,
    sql.Column("id", sql.Integer, primary_key=True),
    *_columns("project", "task", "item", "item_digest", "first", "second"),
    _person(),
    *_columns("kind", "verdict"),
    sql.Column("strength", sql.Integer, nullable=False),
    sql.Column("satisfaction_first", sql.Integer),
    sql.Column("satisfaction_second", sql.Integer),
    sql.Column("flags_first", sql.JSON, nullable=False),
    sql.Column("flags_second", sql.JSON, nullable=False),
    sql.Column("comment", sql.Text, nullable=False),
    sql.Column("left", sql.String, nullable=False),
    sql.Column("seconds", sql.Float, nullable=False),
    sql.Column("time", sql.Float, nullable=False),
    sql.Column("revision", sql.Integer, nullable=False),
    sql.UniqueConstraint("project", "task", "person", "kind"),
)
assignments = sql.Table(
    "assignments",
    _TABLES,
    *_columns("project", "task"),
    _person(),
    sql.Column("opened", sql.Float, nullable=False),
    sql.Column("skipped", sql.String),
    sql.PrimaryKeyConstraint("project", "task", "person"),
)
judge_replies = sql.Table(
    "judge_replies",
    _TABLES,
    *_columns("project", "task", "item_digest", "judge", "left"),
    sql.Column("verdict", sql.String),
    sql.Column("strength", sql.Integer, nullable=False),
    sql.Column("reply", sql.Text, nullable=False),
    sql.PrimaryKeyConstraint("project", "task", "judge", "left"),
)
GRADING = Schema(name="grading", tables=_TABLES)
