"""Tables of items: their logs and the states of their databases."""

from __future__ import annotations

import sqlalchemy as sql

from openafm.annotation.database import Schema

_TABLES = sql.MetaData()

items = sql.Table(
    "tree_items",
    _TABLES,
    sql.Column("id", sql.String, primary_key=True),
    sql.Column("scenario", sql.String, nullable=False),
    sql.Column("title", sql.String, nullable=False),
    sql.Column("language", sql.String, nullable=False),
    sql.Column("is_done", sql.Boolean, nullable=False),
    sql.Column("created", sql.Float, nullable=False),
)
events = sql.Table(
    "tree_events",
    _TABLES,
    sql.Column("item", sql.ForeignKey("tree_items.id", ondelete="CASCADE"), nullable=False),
    sql.Column("sequence", sql.Integer, nullable=False),
    sql.Column("change", sql.String, nullable=False),
    sql.Column("kind", sql.String, nullable=False),
    sql.Column("payload", sql.JSON, nullable=False),
    sql.Column("person", sql.String),
    sql.Column("time", sql.Float, nullable=False),
    sql.PrimaryKeyConstraint("item", "sequence"),
    info={"keep_rows": True},  # a log without some of its events could not be read
)
states = sql.Table(
    "tree_states",
    _TABLES,
    sql.Column("key", sql.String, primary_key=True),
    sql.Column("parent", sql.String),
    sql.Column("data", sql.LargeBinary, nullable=False),
)
"""A state is the whole image of a database where `parent` is NULL, else the delta from the parent's image."""

project = sql.Table(
    "tree_project",
    _TABLES,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("id", sql.String, nullable=False),
)
"""One row, numbered 1: the project that all items belong to."""

TREES = Schema(
    name="trees",
    tables=_TABLES,
    migrations=(("CREATE TABLE tree_project (number INTEGER NOT NULL PRIMARY KEY, id VARCHAR NOT NULL)",),),
)
