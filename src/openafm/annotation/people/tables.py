"""Tables of people. Secrets are stored as hashes."""

from __future__ import annotations

import sqlalchemy as sql

from openafm.annotation.database import Schema

_TABLES = sql.MetaData()


def _person() -> sql.Column[str]:
    return sql.Column("person", sql.ForeignKey("people.id", ondelete="CASCADE"), nullable=False)


people = sql.Table(
    "people",
    _TABLES,
    sql.Column("id", sql.String, primary_key=True),
    sql.Column("name", sql.String, nullable=False, unique=True),
    sql.Column("password", sql.String, nullable=False),
    sql.Column("role", sql.String, nullable=False),
    sql.Column("created", sql.Float, nullable=False),
)
memberships = sql.Table(
    "memberships",
    _TABLES,
    _person(),
    sql.Column("project", sql.String, nullable=False),
    sql.PrimaryKeyConstraint("person", "project"),
)
invites = sql.Table(
    "invites",
    _TABLES,
    sql.Column("digest", sql.String, primary_key=True),
    sql.Column("role", sql.String, nullable=False),
    sql.Column("projects", sql.JSON, nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
    sql.Column("person", sql.ForeignKey("people.id", ondelete="CASCADE")),
)
sessions = sql.Table(
    "sessions",
    _TABLES,
    sql.Column("digest", sql.String, primary_key=True),
    _person(),
    sql.Column("csrf", sql.String, nullable=False),
    sql.Column("expires", sql.Float, nullable=False),
)
audit = sql.Table(
    "audit",
    _TABLES,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("time", sql.Float, nullable=False),
    sql.Column("person", sql.String),
    sql.Column("action", sql.String, nullable=False),
    sql.Column("detail", sql.JSON, nullable=False),
    info={"keep_rows": True},
)
PEOPLE = Schema(name="people", tables=_TABLES)

SECRETS = ("digest", "csrf", "password")
"""Columns that an export leaves out."""
