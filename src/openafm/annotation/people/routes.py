"""HTTP routes of accounts and sessions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from openafm.annotation.access import AccessControl, admin, current_person
from openafm.annotation.errors import AnnotationError, forbidden
from openafm.annotation.people.accounts import Accounts, Person, Role, person_dict
from openafm.annotation.people.audit import entries
from openafm.annotation.people.privacy import delete_person, export_person
from openafm.annotation.people.sessions import Session

router = APIRouter(prefix="/api")

Current = Annotated[Person, Depends(current_person)]
Admin = Annotated[Person, Depends(admin)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SignIn(_Body):
    name: str = Field(max_length=200)
    password: str = Field(max_length=2000)


class Join(SignIn):
    invite: str = Field(max_length=200)


class Invite(_Body):
    role: Role = Role.ANNOTATOR
    days: float = Field(7.0, gt=0, le=90)


class Change(_Body):
    role: Role
    projects: list[str] = Field(max_length=1000)


async def _accounts(request: Request) -> Accounts:
    accounts: Accounts = request.app.state.accounts
    return accounts


AccountsOf = Annotated[Accounts, Depends(_accounts)]


@router.get("/session")
def session(request: Request) -> dict[str, Any]:
    """Return who is signed in, and the token that changes need."""
    current: Session | None = request.state.session
    access: AccessControl = request.state.access
    return {
        "person": current and person_dict(current.person),
        "csrf": current and current.csrf,
        "needs_accounts": access.needs_accounts,
        "project": access.project,
        "title": request.app.title,
    }


@router.post("/sign-in")
def sign_in(request: Request, body: SignIn) -> JSONResponse:
    """Open a session."""
    access = _with_accounts(request)
    token = access.sessions.sign_in(body.name.strip(), body.password, request.client.host if request.client else "")
    return _with_cookie(access, token)


@router.post("/join")
def join(request: Request, body: Join, accounts: AccountsOf) -> JSONResponse:
    """Create the account of an invited person and open a session."""
    access = _with_accounts(request)
    person = accounts.join(body.invite, body.name, body.password)
    return _with_cookie(access, access.sessions.open(person.id))


@router.post("/sign-out")
def sign_out(request: Request, _person: Current) -> JSONResponse:
    """Close the session."""
    access = _with_accounts(request)
    access.sessions.close(access.token({name: value.decode("latin-1") for name, value in request.scope["headers"]}))
    return _with_cookie(access, "")


@router.get("/people")
def people(_admin: Admin, accounts: AccountsOf) -> list[dict[str, Any]]:
    """Return all accounts."""
    return [person_dict(person) for person in accounts.people()]


@router.post("/invites")
def invite(request: Request, body: Invite, by: Admin, accounts: AccountsOf) -> dict[str, str]:
    """Create an invite for this project; the link is shown once."""
    token = accounts.invite(body.role, [request.state.access.project], by=by, days=body.days)
    return {"path": f"/join#{token}"}  # browsers do not send the part after #, so it is in no log


@router.put("/people/{id}")
def change(id: str, body: Change, by: Admin, accounts: AccountsOf) -> dict[str, Any]:
    """Change the role and the projects of a person."""
    return person_dict(accounts.change(id, body.role, body.projects, by=by))


@router.get("/people/{id}/export")
def export(id: str, by: Current, accounts: AccountsOf) -> dict[str, Any]:
    """Return everything that is stored about a person."""
    _check_own(id, by)
    return export_person(accounts, id)


@router.delete("/people/{id}")
def delete(id: str, by: Current, accounts: AccountsOf) -> dict[str, str]:
    """Delete everything that is stored about a person."""
    _check_own(id, by)
    delete_person(accounts, id, by=by)
    return {"deleted": id}


@router.get("/audit")
def audit(_admin: Admin, accounts: AccountsOf) -> list[dict[str, Any]]:
    """Return the newest entries of the audit log."""
    return entries(accounts.database)


def _check_own(id: str, by: Person) -> None:
    if by.id != id and by.role is not Role.ADMIN:
        raise forbidden("only an admin may do this for another person")


def _with_accounts(request: Request) -> AccessControl:
    access: AccessControl = request.state.access
    if not access.needs_accounts:
        raise AnnotationError("this server has no accounts; you are the local admin", status=409, code="no_accounts")
    return access


def _with_cookie(access: AccessControl, token: str) -> JSONResponse:
    return JSONResponse({}, headers={"Set-Cookie": access.cookie(token)})
