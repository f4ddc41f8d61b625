"""The tables of a frontier."""

from __future__ import annotations

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pages (
    id INTEGER PRIMARY KEY,
    url TEXT NOT NULL UNIQUE,
    host TEXT NOT NULL,
    domain TEXT NOT NULL,
    template TEXT NOT NULL,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    parent TEXT NOT NULL,
    depth INTEGER NOT NULL,
    redirects INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    score REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    fetched_at REAL NOT NULL DEFAULT 0,
    status INTEGER NOT NULL DEFAULT 0,
    etag TEXT NOT NULL DEFAULT '',
    last_modified TEXT NOT NULL DEFAULT '',
    digest TEXT NOT NULL DEFAULT '',
    opt_out TEXT NOT NULL DEFAULT '',
    warc TEXT NOT NULL DEFAULT '',
    decision TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS pages_by_host ON pages (host, score DESC) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS pages_by_time ON pages (host, not_before) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS pages_by_template ON pages (template);
CREATE INDEX IF NOT EXISTS pages_by_digest ON pages (digest) WHERE digest != '';
CREATE TABLE IF NOT EXISTS hosts (
    host TEXT PRIMARY KEY,
    waiting INTEGER NOT NULL DEFAULT 0,
    active INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL DEFAULT 0,
    backoff REAL NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS hosts_by_time ON hosts (next_at, host) WHERE waiting > 0;
CREATE TABLE IF NOT EXISTS attempts (url TEXT NOT NULL, at REAL NOT NULL, outcome TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS attempts_by_url ON attempts (url);
CREATE TABLE IF NOT EXISTS files (
    url TEXT PRIMARY KEY, fetched_at REAL NOT NULL, status INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS warc (file TEXT PRIMARY KEY, length INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rewards (
    domain TEXT NOT NULL, template TEXT NOT NULL, language TEXT NOT NULL, topic TEXT NOT NULL,
    pages INTEGER NOT NULL, reward REAL NOT NULL, PRIMARY KEY (domain, template, language, topic)
) WITHOUT ROWID;
"""
# The counts of a host follow the states of its pages.
TRIGGERS = """
CREATE TRIGGER IF NOT EXISTS page_added AFTER INSERT ON pages BEGIN
    INSERT INTO hosts (host) VALUES (NEW.host) ON CONFLICT DO NOTHING;
    UPDATE hosts SET waiting = waiting + (NEW.state = 'waiting') WHERE host = NEW.host;
END;
CREATE TRIGGER IF NOT EXISTS page_changed AFTER UPDATE OF state ON pages BEGIN
    UPDATE hosts SET
        waiting = waiting + (NEW.state = 'waiting') - (OLD.state = 'waiting'),
        active = active + (NEW.state IN ('held', 'active')) - (OLD.state IN ('held', 'active'))
    WHERE host = NEW.host;
END;
"""
