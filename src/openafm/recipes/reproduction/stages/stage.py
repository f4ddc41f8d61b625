"""What a stage of a reproduction is: `openafm` commands in order, and what they need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """A call of `openafm`.

    Words may name folders and values: `{here}` is the stage's folder, `{data}` that of the stage `data`, `{site}` the
    address of the generated web site, `{log.key}` the value `key` of the JSON output of the stage's command `log`.

    Attributes:
        file: where its standard output goes, relative to the stage's folder; empty: the output is JSON, and a result.
        serves: it runs until the stage ends. The first line of its output is JSON, such as an address.
        exit_codes: codes of success. A check that finds something may end with 1.
        requires: optional parts of an installation (`requirements.py`). If one is missing, the command is left out.
        lost: what is lost then.
        kill_rank: kill one of its worker processes after the first checkpoint.
        clears: a folder that is removed before, relative to the stage's folder: the command does not continue one.
    """

    name: str
    words: tuple[str, ...]
    file: str = ""
    serves: bool = False
    exit_codes: tuple[int, ...] = (0,)
    requires: tuple[str, ...] = ()
    lost: str = ""
    kill_rank: bool = False
    clears: str = ""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the report.

    Attributes:
        section: the section of the report.
        needs: stages whose results it reads; they come before it.
        commands: in order; if one fails, the stage has failed.
        requires: optional parts of an installation without which it is skipped (`requirements.py`).
        files: texts that are written to the stage's folder first, by name.
        serves_site: a generated web site is served while the stage runs.
    """

    name: str
    section: str
    title: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    serves_site: bool = False
