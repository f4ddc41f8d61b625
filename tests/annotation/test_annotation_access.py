"""The application shell over HTTP: access control, sessions, error replies, pages."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import httpx2 as httpx
import pytest
from fastapi import APIRouter, Depends
from web_servers import Browser, running_app

from openafm.annotation.access import MAX_BODY_BYTES, reviewer
from openafm.annotation.database import Database
from openafm.annotation.people.accounts import Accounts, Person, Role
from openafm.annotation.people.tables import PEOPLE
from openafm.annotation.web import WebConfig, build_app, first_invite
from openafm.serving.config import ServerConfig, ServerSetupError
from openafm.serving.server import bind

router = APIRouter(prefix="/api")


@router.post("/echo")
def echo(body: dict[str, str]) -> dict[str, str]:
    return body


@router.get("/secret")
def secret(_by: Annotated[Person, Depends(reviewer)]) -> dict[str, str]:
    return {}


@router.get("/broken")
def broken() -> None:
    raise ValueError("the private text")


def app_of(accounts: Accounts, config: WebConfig) -> object:
    return build_app(accounts, pages="shared", routers=[router], project="wave1", title="Wave 1", config=config)


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return Accounts(Database(tmp_path / "people.sqlite3", [PEOPLE]))


@pytest.fixture
def local_url(accounts: Accounts) -> Iterator[str]:
    config = WebConfig(port=0)
    assert first_invite(accounts, config, "http://x") is None
    with running_app(app_of(accounts, config), config) as url:
        yield url


@pytest.fixture
def url(accounts: Accounts) -> Iterator[str]:
    config = WebConfig(port=0, needs_accounts=True)
    with running_app(app_of(accounts, config), config) as url:
        yield url


def test_the_local_admin_needs_no_account(local_url: str) -> None:
    browser = Browser(local_url)
    session = browser.open()
    assert (session["person"]["role"], session["needs_accounts"], session["title"]) == ("admin", False, "Wave 1")
    assert browser.post("/echo", {"a": "b"}) == {"a": "b"}
    assert browser.send("POST", "/sign-in", json={"name": "a", "password": "b"}).status_code == 409


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"X-CSRF-Token": "guessed"}, 403),
        ({"X-CSRF-Token": ""}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Length": str(MAX_BODY_BYTES + 1)}, 413),
    ],
)
def test_requests_of_other_pages_are_refused(local_url: str, headers: dict[str, str], status: int) -> None:
    browser = Browser(local_url)
    browser.open()
    content = b"{}" if "Content-Length" not in headers else b" " * (MAX_BODY_BYTES + 1)
    reply = browser.send("POST", "/echo", headers=headers, content=content)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


def test_a_body_without_a_length_is_limited(local_url: str) -> None:
    browser = Browser(local_url)
    browser.open()
    parts = (b" " * (1 << 20) for _ in range(5))
    assert browser.send("POST", "/echo", content=parts).status_code == 413


def test_errors_do_not_show_texts_of_the_server(local_url: str) -> None:
    browser = Browser(local_url)
    browser.open()
    reply = browser.send("GET", "/broken")
    assert reply.status_code == 500
    assert "private" not in reply.text
    assert browser.send("GET", "/missing").status_code == 404
    assert browser.send("POST", "/echo", content=b"{").status_code == 422


def test_people_join_by_invites_and_see_what_their_role_allows(url: str, accounts: Accounts) -> None:
    anonymous = Browser(url)
    assert anonymous.open()["person"] is None
    assert anonymous.send("GET", "/people").status_code == 401
    ana, bo = Browser(url), Browser(url)
    ana.join(accounts.invite(Role.ADMIN), "Ana")
    bo.join(ana.post("/invites", {"role": "annotator"})["path"].removeprefix("/join#"), "Bo")
    assert bo.post("/echo", {"a": "b"}) == {"a": "b"}
    assert bo.send("GET", "/secret").status_code == 403
    assert bo.send("GET", "/people").status_code == 403
    assert [person["name"] for person in ana.get("/people")] == ["Ana", "Bo"]
    ids = {person["name"]: person["id"] for person in ana.get("/people")}
    assert bo.send("DELETE", f"/people/{ids['Ana']}").status_code == 403
    assert ana.send("PUT", f"/people/{ids['Bo']}", json={"role": "reviewer", "projects": ["wave2"]}).status_code == 200
    assert bo.send("GET", "/secret").status_code == 403  # another project
    assert bo.get(f"/people/{ids['Bo']}/export")["account"]["projects"] == ["wave2"]
    assert ana.send("PUT", f"/people/{ids['Bo']}", json={"role": "reviewer", "projects": ["wave1"]}).status_code == 200
    assert bo.send("GET", "/secret").status_code == 200
    assert bo.get(f"/people/{ids['Bo']}/export")["account"]["name"] == "Bo"
    assert bo.send("DELETE", f"/people/{ids['Bo']}").status_code == 200
    assert bo.open()["person"] is None
    assert "join" in [entry["action"] for entry in ana.get("/audit")]
    ana.post("/sign-out")
    assert ana.open()["person"] is None


def test_cookies_are_closed_to_scripts_and_other_sites(url: str, accounts: Accounts) -> None:
    body = {"invite": accounts.invite(Role.ADMIN), "name": "Ana", "password": "a long password"}
    cookie = Browser(url).send("POST", "/join", json=body).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    secure = WebConfig(port=0, public_url="https://grade.example.org")
    assert secure.is_secure
    assert secure.has_accounts
    app = app_of(accounts, secure)
    assert app.cookie("token").startswith("__Host-session=token; ")
    assert app.cookie("token").endswith("; Secure")


@pytest.mark.parametrize(("proxies", "is_named"), [(("127.0.0.0/8",), True), (("10.0.0.1",), False), ((), False)])
def test_the_client_behind_a_trusted_proxy_is_named_by_its_header(
    accounts: Accounts, proxies: tuple[str, ...], is_named: bool
) -> None:
    config = WebConfig(port=0, needs_accounts=True, trusted_proxies=proxies)
    accounts.join(accounts.invite(Role.ADMIN), "Ana", "a long password")

    def tries(browser: Browser, address: str, password: str = "wrong password") -> int:
        body = {"name": "Ana", "password": password}
        return browser.send("POST", "/sign-in", json=body, headers={"X-Forwarded-For": address}).status_code

    with running_app(app_of(accounts, config), config) as url:
        browser = Browser(url)
        assert [tries(browser, "203.0.113.9") for _ in range(11)] == [401] * 10 + [429]
        assert tries(browser, "203.0.113.10", "a long password") == (200 if is_named else 429)


def test_a_trusted_proxy_needs_accounts_and_an_address() -> None:
    assert WebConfig(trusted_proxies=("127.0.0.1",)).has_accounts
    with pytest.raises(ServerSetupError, match=r"'proxy\.example' is not an IP address or network"):
        WebConfig(trusted_proxies=("proxy.example",)).server()


def test_other_addresses_need_tls(accounts: Accounts) -> None:
    with pytest.raises(ServerSetupError, match="needs TLS"):
        WebConfig(host="0.0.0.0").server()
    config = WebConfig(public_url="https://grade.example.org")
    link = first_invite(accounts, config, "http://localhost:8010")
    assert link is not None
    accounts.join(link.removeprefix("https://grade.example.org/join#"), "Ana", "a long password")
    assert first_invite(accounts, config, "http://localhost:8010") is None


def test_pages_load_nothing_from_other_origins(url: str) -> None:
    for path in ("/people", "/join", "/static/shared/people.js", "/static/shared/style.css"):
        reply = httpx.get(url + path, trust_env=False)
        assert reply.status_code == 200
        assert "default-src 'self'" in reply.headers["content-security-policy"]
        assert "://" not in reply.text
    assert httpx.get(f"{url}/static/shared/..%2f..%2fweb.py", trust_env=False).status_code == 404


def test_half_of_a_surrogate_pair_is_refused(local_url: str) -> None:
    browser = Browser(local_url)
    browser.open()
    reply = browser.send("POST", "/echo", content=b'{"text": "\\uD800"}')
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "characters")
    assert browser.send("POST", "/echo", content=b'{"text": "\\ud83d\\ude00"}').json() == {"text": "\U0001f600"}


def test_a_reply_in_two_parts_does_not_wait_for_the_client() -> None:
    assert asyncio.run(_no_delay()) == 1


async def _no_delay() -> int:
    """Return TCP_NODELAY of a connection to a bound socket. asyncio sets it only if the socket names its protocol."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind(ServerConfig(port=0)) as bound:
        async with await asyncio.start_server(connected, sock=bound):
            _, writer = await asyncio.open_connection(*bound.getsockname())
            writer.close()
            return await asyncio.wait_for(found, 60)
