"""Export and deletion of everything that is stored about a person.

Every table with a column `person` takes part, in all schemas of the database. Deletion removes their rows; rows of tables
with the info `keep_rows`, such as the audit log, lose the person.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sql

from openafm.annotation.people import tables
from openafm.annotation.people.accounts import Accounts, Person, Role, check_not_last_admin, found, person_dict
from openafm.annotation.people.audit import record


def export_person(accounts: Accounts, id: str) -> dict[str, Any]:
    """Return the account of a person and all rows about the person, by table, without secrets.

    Raises:
        AnnotationError: no account has this id.
    """
    with accounts.database.reading() as connection:
        result: dict[str, Any] = {"account": person_dict(found(connection, id))}
        for table in _personal_tables(accounts):
            columns = [column for column in table.c if column.name not in tables.SECRETS]
            rows = connection.execute(sql.select(*columns).where(table.c.person == id)).mappings()
            result[table.name] = [dict(row) for row in rows]
    return result


def delete_person(accounts: Accounts, id: str, *, by: Person | None) -> None:
    """Delete a person and everything that is stored about the person.

    Raises:
        AnnotationError: no account has this id, or it is the last admin.
    """
    with accounts.database.writing() as connection:
        person = found(connection, id)
        if person.role is Role.ADMIN:
            check_not_last_admin(connection, id)
        for table in reversed(list(_personal_tables(accounts))):
            if table.info.get("keep_rows"):
                connection.execute(table.update().where(table.c.person == id).values(person=None))
            else:
                connection.execute(table.delete().where(table.c.person == id))
        connection.execute(tables.people.delete().where(tables.people.c.id == id))
        record(connection, accounts.clock(), by if by and by.id != id else None, "delete_person")


def _personal_tables(accounts: Accounts) -> Iterator[sql.Table]:
    for schema in accounts.database.schemas:
        yield from (table for table in schema.tables.sorted_tables if "person" in table.c)
