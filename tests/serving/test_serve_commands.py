"""`openafm keys`, `openafm play`, and TLS."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from endpoints import wait_until
from servers import running_server

from openafm.cli.main import run
from openafm.serving.config import ServerConfig, ServerSetupError
from openafm.serving.server import check_setup


def test_keys_are_created_listed_and_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    assert run(["keys", "create", "ana", "--scope", "metrics", "--days", "2", "--json"]) == 0
    created = json.loads(capsys.readouterr().out)
    assert created["key"].startswith("afm_")
    assert run(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert "ana" in listed
    assert run(["keys", "list", "--json"]) == 0
    (described,) = json.loads(capsys.readouterr().out)
    assert (described["name"], "digest" in described) == ("ana", False)
    assert created["key"] not in listed
    assert run(["keys", "revoke", "anna"]) == 2
    assert run(["keys", "revoke", "ana"]) == 0
    assert run(["keys", "create", "ben", "--scope", "everything"]) == 2
    assert run(["keys", "create", ""]) == 2
    capsys.readouterr()
    assert run(["keys", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_play_opens_the_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("openafm.serving.server.serve", lambda config, bound, announce: announce())
    assert run(["play", "--model", "nano"]) == 0
    wait_until(lambda: opened != [])
    assert opened[0] in capsys.readouterr().out


def test_play_passes_the_token_of_tools_through_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    pages: list[str] = []

    def serve(config: ServerConfig, bound: object, announce: Callable[[], None]) -> None:
        announce()
        wait_until(lambda: opened != [])
        file = Path(urlsplit(opened[0]).path)
        assert file.parent.stat().st_mode & 0o077 == 0
        pages.append(file.read_text())
        assert f"#token={config.tool_token}" in pages[0]

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("openafm.serving.server.serve", serve)
    assert run(["play", "--model", "nano", "--tools", str(tmp_path / "tools.py")]) == 0
    shown = capsys.readouterr().out.splitlines()[0]
    assert "/#token=" in shown
    assert shown in pages[0]
    assert "token" not in opened[0]  # other people on the machine can read the command line of the browser


def test_play_shows_no_address_before_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty_tools.py").write_text("")
    assert run(["play", "--model", "nano", "--tools", str(tmp_path / "empty_tools.py"), "--no-browser"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "has no tools" in shown.err


def test_sigterm_ends_the_playground(tmp_path: Path) -> None:
    """It leaves no message and no temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {**os.environ, "OPENAFM_HOME": str(tmp_path / "home"), "TMPDIR": str(folder)}
    arguments = [sys.executable, "-m", "openafm", "play", "--model", "nano", "--no-browser"]
    with subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            wait_until(lambda: is_ready(url))
            assert list(folder.glob("openafm-play-*"))
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == ""
    assert list(folder.glob("openafm-play-*")) == []


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health/ready").status_code == 200
    return False


def self_signed(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).add_extension(address, False)
    certificate_file, key_file = folder / "cert.pem", folder / "key.pem"
    certificate_file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return certificate_file, key_file


def test_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with running_server(tls_certificate=str(certificate), tls_key=str(key)) as url:
        secure = url.replace("http://", "https://")
        trusted = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{secure}/health", verify=trusted).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health")
    with pytest.raises(ServerSetupError, match="PEM"):
        check_setup(ServerConfig(models=("nano",), tls_certificate=str(key), tls_key=str(certificate)))
