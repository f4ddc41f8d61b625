"""The library: what `list` shows, names and aliases, and pulls from folders, servers and the hub."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf_models
import pytest

from openafm.adapters.delivery.errors import NotOfferedError, UnreachableError, UntrustedDeliveryError
from openafm.adapters.delivery.keys import public_file, read_private_key, write_key_pair
from openafm.adapters.delivery.server import make_server
from openafm.bundle import BundleError, BundleNotFoundError, open_bundle, shipped_bundle
from openafm.bundle.library.manifest import BundleManifest, OfferedBundle, OfferedBundleFile
from openafm.bundle.library.pulling import pull_copy, pull_hub, pull_served
from openafm.bundle.library.sharing import share_bundles
from openafm.bundle.store import FILE_PATTERNS, bundles_home, find_bundle, remove_bundle, set_alias
from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.core.errors import UsageError
from openafm.core.files import data_home
from openafm.runtime.engines.selection import open_engine


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_models.bundle(tmp_path_factory.mktemp("made"), "qwen3", num_hidden_layers=1).path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


@contextmanager
def served(path: Path, key: Path) -> Iterator[str]:
    if not key.exists():
        write_key_pair(key)
    server = make_server(share_bundles([open_bundle(path)], read_private_key(key)), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["list", "--json"]) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["bundles"]}


def test_list_show_alias_use_and_rm_agree_on_names(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", str(made), "--name", "small"]) == 0
    assert run(["alias", "s", "small"]) == 0
    assert find_bundle("s") == bundles_home() / "small"
    facts = listed(capsys)["small"]
    assert facts["aliases"] == ["s"]
    assert facts["bytes"] > 100_000
    assert (facts["engine"], facts["weights"], facts["last_used"]) == ("torch", "float32", None)
    assert run(["use", "s"]) == 0
    assert listed(capsys)["small"]["current"]
    assert run(["show", "s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"] == facts["signature"]
    assert run(["list"]) == 0
    assert "in 2 bundles" in capsys.readouterr().out
    assert run(["rm", "small"]) == 0
    assert "small" not in listed(capsys)
    with pytest.raises(BundleNotFoundError, match="no bundle 's'"):
        find_bundle("s")


def test_last_use_is_that_of_an_engine(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = pull_copy(str(made), "small").bundle
    assert listed(capsys)["small"]["last_used"] is None
    open_engine(bundle)
    assert listed(capsys)["small"]["last_used"]
    remove_bundle("small")
    pull_copy(str(made), "small")
    assert listed(capsys)["small"]["last_used"] is None


def test_a_damaged_bundle_is_listed_with_its_problem(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = pull_copy(str(made), "small").bundle.path
    (place / "config.json").write_text("{}")
    assert "not the config" in listed(capsys)["small"]["problem"]


@pytest.mark.parametrize(
    ("alias", "name", "message"),
    [("small", "small", "is the name of a bundle"), ("a/b", "small", "cannot name"), ("nope", None, "no alias 'nope'")],
)
def test_aliases_that_cannot_be(made: Path, alias: str, name: str | None, message: str) -> None:
    pull_copy(str(made), "small")
    with pytest.raises(UsageError, match=message):
        set_alias(alias, name)
    with pytest.raises(BundleNotFoundError):
        set_alias("new", "absent")


def test_pull_from_a_folder_and_a_file_url(made: Path, tmp_path: Path) -> None:
    pulled = pull_copy(made.as_uri(), "small").bundle
    pulled.verify()
    assert pulled.path == bundles_home() / "small"
    assert pull_copy(str(made), "small").bundle.signature == pulled.signature  # again: nothing to do
    shipped = shipped_bundle()
    if shipped is not None:
        with pytest.raises(UsageError, match="exists with other content"):
            pull_copy(str(shipped), "small")
    with pytest.raises(UsageError, match="names the machine elsewhere"):
        pull_copy("file://elsewhere/bundle")


def test_a_source_that_is_no_folder_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in ("absent", (tmp_path / "absent").as_uri(), "ftp://server/bundle"):
        assert run(["pull", source]) == 2
        message = capsys.readouterr().err
        assert f"{source} is not a folder" in message
        for accepted in ("the folder of a bundle", "file:///PATH", "http(s)://SERVER", "OWNER/NAME"):
            assert accepted in message


def test_a_tampered_folder_is_not_installed(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "tampered")
    file = tmp_path / "tampered" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match="differs from the signed"):
        pull_copy(str(tmp_path / "tampered"))
    assert not (bundles_home() / "tampered").exists()


def test_pull_from_a_server(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(made, tmp_path / "key") as url:
        public = str(public_file(tmp_path / "key"))
        assert run(["pull", url, made.name, "--name", "mine", "--key", public, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["fetched_bytes"] > 100_000
        open_bundle("mine").verify()
        assert pull_served(url, made.name, "mine").num_fetched == 0
        with pytest.raises(NotOfferedError, match="did you mean"):
            pull_served(url, made.name + "x")
        assert run(["pull", url, "--name", "alone", "--key", public]) == 0  # the only one that it offers
        assert "alone is installed" in capsys.readouterr().out
    assert not list((data_home() / "downloads").glob("*/*"))


def test_the_shipped_bundle_is_pulled_whole(tmp_path: Path) -> None:
    """With its recovery adapter, its reader of pages and the adapter for them."""
    shipped = shipped_bundle()
    assert shipped is not None
    with served(shipped, tmp_path / "key") as url:
        pulled = pull_served(url, shipped.name, "mine")
    for bundle in (pulled.bundle, pull_copy(str(shipped), "copied").bundle):
        bundle.verify()
        files = {file.relative_to(bundle.path): file.read_bytes() for file in bundle.path.rglob("*") if file.is_file()}
        assert files == {file.relative_to(shipped): file.read_bytes() for file in shipped.rglob("*") if file.is_file()}


def test_an_interrupted_pull_is_resumed(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path / "key") as url:
        bundle = open_bundle(made)
        weights = (made / "model.safetensors").read_bytes()
        import hashlib

        downloads = data_home() / "downloads" / f"{bundle.name}-{bundle.signature}"
        downloads.mkdir(parents=True)
        digest = hashlib.sha256(weights).hexdigest()
        (downloads / f"{digest}.model.safetensors.part").write_bytes(weights[:-1000])
        pulled = pull_served(url, made.name, "mine")
        assert pulled.num_fetched < len(weights) - 1000
        pulled.bundle.verify()


def test_another_key_and_changed_files_install_nothing(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path / "key") as url:
        write_key_pair(tmp_path / "other")
        other = public_file(tmp_path / "other").read_text().strip()
        with pytest.raises(UntrustedDeliveryError):
            pull_served(url, made.name, "mine", other)
    shutil.copytree(made, tmp_path / made.name)
    with served(tmp_path / made.name, tmp_path / "key") as url:
        (tmp_path / made.name / "card.md").write_text("x" * (made / "card.md").stat().st_size)
        with pytest.raises(UntrustedDeliveryError, match="not the file that the manifest lists"):
            pull_served(url, made.name, "mine")
    assert not (bundles_home() / "mine").exists()
    with pytest.raises(UnreachableError):
        pull_served(url, made.name, "mine")


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", ".hidden", "model.bin", "recovery.fmadapter/../../x", "reader/../x"]
)
def test_manifests_list_only_files_of_bundles(path: str) -> None:
    with pytest.raises(ConfigError):
        OfferedBundleFile(path=path, bytes=1, sha256="0" * 64)


def test_manifests_list_all_files_of_bundles() -> None:
    for path in (pattern.replace("*", "00001-of-00002") for pattern in FILE_PATTERNS):
        assert OfferedBundleFile(path=path, bytes=1, sha256="0" * 64).path == path


def test_manifests_are_checked() -> None:
    files = tuple(
        OfferedBundleFile(path=name, bytes=1, sha256="0" * 64)
        for name in ("config.json", "tokenizer.json", "chat_template.json", "signature.json")
    )
    offer = OfferedBundle(name="a", signature="0" * 40, files=files)
    with pytest.raises(ConfigError, match="twice"):
        BundleManifest(published=0, bundles=(offer, offer))
    with pytest.raises(ConfigError, match="is not listed"):
        OfferedBundle(name="a", signature="0" * 40, files=files[1:])
    with pytest.raises(ConfigError, match="cannot name"):
        OfferedBundle(name="../a", signature="0" * 40, files=files)


class _Hub(http.server.BaseHTTPRequestHandler):
    """The two routes of the hub that `snapshot_download` needs. It stands for the hub: no test uses the network."""

    folder: Path
    commit = "0" * 39 + "1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/owner/small/tree/{self.commit}"):
            files = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0"} for f in self.folder.iterdir()]
            self._send(json.dumps(files).encode())
        elif path.startswith("/api/models/owner/small"):
            siblings = [{"rfilename": file.name} for file in self.folder.iterdir()]
            self._send(json.dumps({"id": "owner/small", "sha": self.commit, "siblings": siblings}).encode())
        elif path.startswith(f"/owner/small/resolve/{self.commit}/") and (self.folder / Path(path).name).is_file():
            self._send((self.folder / Path(path).name).read_bytes())
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hash(data):x}"')
        self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_pull_from_the_hub(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    handler = type("Handler", (_Hub,), {"folder": made.parent / "qwen3-checkpoint"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    try:
        pulled = pull_hub("owner/small")
    finally:
        server.shutdown()
        server.server_close()
    assert pulled.bundle.signature == open_bundle(made).signature
    assert not list((data_home() / "downloads").iterdir())
    with pytest.raises(UsageError, match="exists with other content"):
        pull_hub("owner/small")
