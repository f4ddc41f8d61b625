"""Pulling adapters from a server: selection, verification, resumption, and refusals that install nothing."""

from __future__ import annotations

import contextlib
import functools
import http.client
import http.server
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_adapters import SIGNATURE

from openafm.adapters.config import LoRAConfig
from openafm.adapters.delivery import server as server_module
from openafm.adapters.delivery.client import Pulled, pull_adapter
from openafm.adapters.delivery.errors import (
    DeliveryError,
    DeliverySetupError,
    NotOfferedError,
    UnreachableError,
    UntrustedDeliveryError,
)
from openafm.adapters.delivery.http import Download
from openafm.adapters.delivery.keys import (
    public_file,
    public_key,
    read_private_key,
    read_public_key,
    sign,
    write_key_pair,
)
from openafm.adapters.delivery.manifest import AdapterManifest, sign_manifest
from openafm.adapters.delivery.publishers import Publisher, canonical_url, known_publisher, remember_publisher
from openafm.adapters.delivery.server import MANIFEST_PATH, Catalog, ServedFile, build_catalog, make_server
from openafm.adapters.package import (
    AdapterMismatchError,
    AdapterNameError,
    AdapterNotFoundError,
    AdapterPackage,
    IncompleteDraftError,
    write_adapter,
)
from openafm.adapters.store import adapter_place, installed_adapters
from openafm.core.config import ConfigError, to_dict
from openafm.core.files import OutOfSpaceError, data_home
from openafm.core.folder_lock import FolderInUseError, folder_lock

OTHER_SIGNATURE = "f" * 40
PRIVATE = "1" * 64
KEY = public_key(PRIVATE)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with `tags` for two bases and `titles` for one."""
    write(tmp_path / "shelf" / "tags.fmadapter", seed=1)
    write(tmp_path / "shelf" / "tags_of_another_base", OTHER_SIGNATURE, seed=2)
    write(tmp_path / "shelf" / "titles.fmadapter", name="titles", seed=3)
    return tmp_path / "shelf"


def write(
    path: Path, base_signature: str = SIGNATURE, name: str = "tags", seed: int = 0, width: int = 200_000
) -> AdapterPackage:
    """Write an adapter of 1.2 MB, which is sent in several chunks."""
    generator = np.random.default_rng(seed)
    weights = {f"q.lora.{part}": generator.normal(size=shape) for part, shape in (("a", (3, width)), ("b", (5, 3)))}
    return write_adapter(path, weights=weights, config=LoRAConfig(rank=3), base_signature=base_signature, name=name)


@contextmanager
def serving(shelf: Catalog) -> Iterator[str]:
    server = make_server(shelf, "127.0.0.1", 0)
    with running(server) as url:
        yield url


@contextmanager
def running(server: http.server.HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def pull(url: str, name: str = "tags", base: str = SIGNATURE, **arguments: Any) -> Pulled:
    return pull_adapter(url, name, base, **({"key": KEY, "timeout_s": 10.0} | arguments))


def refused(error: type[Exception], url: str, match: str | None = None, **arguments: Any) -> None:
    """Check that the pull raises the error and installs nothing."""
    before = installed_adapters()
    with pytest.raises(error, match=match):
        pull(url, **arguments)
    assert installed_adapters() == before
    places = (data_home() / "adapters").glob("*/.*")
    assert not list(places)


def downloads() -> list[Path]:
    return sorted((data_home() / "downloads").glob("*/*.part"))


def signed(values: dict[str, Any]) -> bytes:
    """Return a signed manifest of invalid values."""
    text = json.dumps(values)
    return json.dumps({"manifest": text, "key": KEY, "signature": sign(text.encode(), PRIVATE)}).encode()


def changed(shelf: Path, change: Callable[[dict[str, Any]], Any]) -> Catalog:
    """Return a catalog whose manifest differs from its files."""
    catalog = build_catalog(shelf, PRIVATE)
    values = to_dict(catalog.manifest)
    change(values)
    return Catalog(manifest=catalog.manifest, signed=signed(values), files=catalog.files)


def test_the_adapter_for_the_local_base_is_installed(shelf: Path) -> None:
    with serving(build_catalog(shelf, PRIVATE)) as url:
        pulled = pull(url)
        assert pulled.adapter.path == adapter_place("tags", SIGNATURE)
        assert pulled.adapter.weights().keys() == {"q.lora.a", "q.lora.b"}
        total = sum(file.stat().st_size for file in (shelf / "tags.fmadapter").iterdir())
        assert (pulled.num_fetched, pulled.key) == (total, KEY)
        for file in (shelf / "tags.fmadapter").iterdir():
            assert (pulled.adapter.path / file.name).read_bytes() == file.read_bytes()
        assert pull(url).num_fetched == 0
        assert pull(url + "/", base=OTHER_SIGNATURE).adapter.base_signature == OTHER_SIGNATURE
    assert [folder.name for folder in installed_adapters()] == ["fmadapter-tags-0123456", "fmadapter-tags-fffffff"]
    assert not list((data_home() / "downloads").iterdir())


def test_a_draft_is_delivered_with_its_adapter(shelf: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.json", "model.safetensors", "card.md", ".lock"):
        (draft / name).write_text("the same in every file")
    (draft / "signature.json").write_text(json.dumps({"signature": OTHER_SIGNATURE}))
    tags = build_catalog(shelf, PRIVATE).manifest.adapters[0]
    weights = {"q.lora.a": np.ones((3, 4)), "q.lora.b": np.ones((5, 3))}
    write_adapter(
        shelf / "drafted",
        weights=weights,
        config=LoRAConfig(rank=3),
        base_signature=SIGNATURE,
        name="drafted",
        draft=draft,
    )
    with serving(build_catalog(shelf, PRIVATE)) as url:
        adapter = pull(url, "drafted").adapter
    assert adapter.draft is not None
    assert sorted(file.name for file in adapter.draft.iterdir()) == sorted(
        file.name for file in draft.iterdir() if file.name != ".lock"
    )
    assert tags.name == "tags"
    (shelf / "drafted" / "draft" / "model.safetensors").unlink()
    with pytest.raises(IncompleteDraftError):
        build_catalog(shelf, PRIVATE)


def test_other_bases_and_names_are_refused(shelf: Path) -> None:
    with serving(build_catalog(shelf, PRIVATE)) as url:
        refused(NotOfferedError, url, f"{OTHER_SIGNATURE}.*none for the local base {'0' * 40}", base="0" * 40)
        refused(NotOfferedError, url, "did you mean 'tags'", name="tag")
        for name in ("../tags", "", "a b", "tags-x"):
            refused(AdapterNameError, url, "letters", name=name)


def test_only_the_trusted_key_is_trusted(shelf: Path) -> None:
    catalog = build_catalog(shelf, PRIVATE)
    with serving(catalog) as url:
        refused(UntrustedDeliveryError, url, "not signed with the key", key=public_key("2" * 64))
        for data in (
            catalog.signed.replace(b"tags", b"togs"),
            catalog.signed.replace(KEY.encode(), public_key("2" * 64).encode()),
            b"",
            b"[]",
            b"[" * 100_000,
            b'{"manifest": 1, "key": 2, "signature": 3}',
            json.dumps({"manifest": "\ud800", "key": "x", "signature": "zz"}).encode(),
            json.dumps(to_dict(catalog.manifest)).encode(),
        ):
            with serving(Catalog(manifest=catalog.manifest, signed=data, files=catalog.files)) as other:
                refused(UntrustedDeliveryError, other, key=None)
    assert not (data_home() / "adapter-publishers").exists()


def test_without_a_key_the_first_key_of_the_server_is_remembered(shelf: Path) -> None:
    catalog = build_catalog(shelf, PRIVATE)
    server = make_server(catalog, "127.0.0.1", 0)
    with running(server) as url:
        assert pull(url, key=None).key == KEY
        handler: Any = server.RequestHandlerClass
        handler.served = build_catalog(shelf, "2" * 64)
        refused(UntrustedDeliveryError, url, KEY, key=None, name="titles")
        assert pull(url, "titles", key=public_key("2" * 64)).num_fetched  # the user passes the new key
        assert pull(url, "titles", key=None).num_fetched == 0


def test_concurrent_first_pulls_all_remember_their_key(home: Path) -> None:
    urls = [f"http://{number}.example" for number in range(16)]
    with ThreadPoolExecutor(len(urls)) as pool:
        list(pool.map(lambda url: remember_publisher(Publisher(url=url, key=KEY, published=1)), urls))
    assert all(known_publisher(url) == Publisher(url=url, key=KEY, published=1) for url in urls)
    for file in (home / "adapter-publishers").iterdir():
        file.write_text("{")
    with pytest.raises(DeliveryError, match=r"trust http://0\.example again"):
        known_publisher(urls[0])


def test_an_older_manifest_is_refused(shelf: Path) -> None:
    catalog = build_catalog(shelf, PRIVATE)
    server = make_server(catalog, "127.0.0.1", 0)
    with running(server) as url:
        pull(url)
        older = AdapterManifest(published=catalog.manifest.published - 1, adapters=catalog.manifest.adapters)
        handler: Any = server.RequestHandlerClass
        handler.served = Catalog(manifest=older, signed=sign_manifest(older, PRIVATE), files=catalog.files)
        refused(UntrustedDeliveryError, url, "older", name="titles")


@pytest.mark.parametrize(
    "path",
    ["../x", "/x", "draft/../../x", "draft//x", "..", "", ".lock", "a\\b", "c:x", "draft/a/b", "x\n", "x\0", "a" * 200, "é"],
)
def test_paths_outside_of_the_adapter_are_refused(shelf: Path, path: str) -> None:
    def change(values: dict[str, Any]) -> None:
        values["adapters"][0]["files"].append({"path": path, "bytes": 1, "sha256": "0" * 64})

    with serving(changed(shelf, change)) as url:
        refused(UntrustedDeliveryError, url, "is not the path")


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["adapters"][0].update(name="../../tags"),
        lambda values: values["adapters"][0].update(baseModelSignature="../x"),
        lambda values: values["adapters"][0]["files"][0].update(sha256="../x"),
        lambda values: values["adapters"][0]["files"][0].update(bytes=-1),
        lambda values: values["adapters"][0]["files"].pop(),
        lambda values: values["adapters"][0]["files"].append(values["adapters"][0]["files"][0]),
        lambda values: values["adapters"].append(values["adapters"][0]),
        lambda values: values.update(version=2),
        lambda values: values.update(more=1),
        lambda values: values.pop("published"),
    ],
)
def test_a_signed_manifest_with_invalid_values_is_refused(shelf: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    with serving(changed(shelf, change)) as url:
        refused(UntrustedDeliveryError, url)


def test_an_incomplete_draft_in_the_manifest_is_refused(shelf: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        values["adapters"][0]["files"].append({"path": "draft/config.json", "bytes": 1, "sha256": "0" * 64})

    with serving(changed(shelf, change)) as url:
        refused(IncompleteDraftError, url, "incomplete draft")


def test_oversized_files_and_manifests_are_refused(shelf: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        for adapter in values["adapters"]:
            for file in adapter["files"]:
                file["bytes"] -= 100

    with serving(build_catalog(shelf, PRIVATE)) as url:
        refused(UntrustedDeliveryError, url, "allowed are 1,000", max_bytes=1000)
        assert not downloads()
    with serving(changed(shelf, change)) as url:
        refused(UntrustedDeliveryError, url, "is larger than")
    endless = Catalog(manifest=build_catalog(shelf, PRIVATE).manifest, signed=b"x" * (5 << 20), files={})
    with serving(endless) as url:
        refused(UntrustedDeliveryError, url, "manifest")


def test_an_adapter_larger_than_the_free_disk_space_is_refused(shelf: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        values["adapters"][0]["files"][0]["bytes"] = 1 << 60

    with serving(changed(shelf, change)) as url:
        refused(OutOfSpaceError, url, "room", max_bytes=1 << 61)


def test_a_file_that_changed_on_the_server_is_refused_and_the_installed_one_is_unchanged(shelf: Path) -> None:
    with serving(build_catalog(shelf, PRIVATE)) as url:
        before = pull(url).adapter
    catalog = build_catalog(shelf, PRIVATE)
    write(shelf / "tags.fmadapter", seed=9)
    with serving(catalog) as url:
        assert pull(url).num_fetched == 0  # it is the one that the manifest lists
        write(before.path, seed=8)
        refused(UntrustedDeliveryError, url, "deleted")
    assert all("adapter_weights" not in part.name for part in downloads())
    with serving(build_catalog(shelf, PRIVATE)) as url:
        after = pull(url).adapter
    assert after.digest != before.digest
    after.verify()


def test_an_adapter_whose_metadata_names_another_base_is_refused(shelf: Path) -> None:
    """The manifest lists it for this base."""
    foreign = write(shelf.parent / "foreign" / "tags.fmadapter", OTHER_SIGNATURE, width=10)

    def change(values: dict[str, Any]) -> None:
        values["adapters"][0]["baseModelSignature"] = SIGNATURE

    catalog = changed(foreign.path.parent, change)
    files = {path.replace("fffffff", "0123456"): file for path, file in catalog.files.items()}
    with serving(Catalog(manifest=catalog.manifest, signed=catalog.signed, files=files)) as url:
        refused(AdapterMismatchError, url, f"{OTHER_SIGNATURE}.*{SIGNATURE}")


SERVER = """
import os, signal, sys, time
from pathlib import Path
from openafm.adapters.delivery import server

def broken(self, file, wanted):
    file.seek(wanted.start)
    if len(wanted) < 100_000:
        self.wfile.write(file.read())
        return
    self.wfile.write(file.read({num_bytes}))
    self.wfile.flush()
    {then}

server._Handler._copy = broken
made = server.make_server(server.build_catalog(Path(sys.argv[1]), "1" * 64), "127.0.0.1", 0)
print(made.server_port, flush=True)
made.serve_forever()
"""


@contextmanager
def broken_server(shelf: Path, num_bytes: int, then: str) -> Iterator[str]:
    """Run a server process that sends `num_bytes` of a large file and then executes `then`."""
    script = SERVER.format(num_bytes=num_bytes, then=then)
    process = subprocess.Popen([sys.executable, "-c", script, str(shelf)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def interrupted_server(shelf: Path, num_bytes: int, then: Callable[[Any], None] = lambda handler: None) -> Iterator[str]:
    """A server that sends `num_bytes` of a large file, calls `then`, and closes the connection."""

    def copy(handler: Any, file: Any, wanted: range) -> None:
        file.seek(wanted.start)
        handler.wfile.write(file.read(len(wanted) if len(wanted) < 100_000 else num_bytes))
        if len(wanted) >= 100_000:
            then(handler)
            handler.close_connection = True

    server = make_server(build_catalog(shelf, PRIVATE), "127.0.0.1", 0)
    handler: Any = server.RequestHandlerClass
    handler._copy = copy
    with running(server) as url:
        yield url


def test_a_download_from_a_killed_server_is_resumed(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with broken_server(shelf, 500_000, "os.kill(os.getpid(), signal.SIGKILL)") as url:
        refused(UnreachableError, url, "500,000 of .* resume")
    assert max(part.stat().st_size for part in downloads()) == 500_000
    asked: list[range | None] = []
    wanted_range = server_module._Handler._wanted_range

    def watched(self: Any, size: int, digest: str) -> range | None:
        asked.append(wanted_range(self, size, digest))
        return asked[-1]

    monkeypatch.setattr(server_module._Handler, "_wanted_range", watched)
    size = (shelf / "tags.fmadapter" / "adapter_weights.safetensors").stat().st_size
    with serving(build_catalog(shelf, PRIVATE)) as url:
        pulled = pull(url)
    assert asked == [range(500_000, size)]
    assert pulled.num_fetched == size - 500_000
    pulled.adapter.verify()
    assert not downloads()


def test_the_download_of_a_changed_file_restarts(shelf: Path) -> None:
    with interrupted_server(shelf, 500_000) as url:
        refused(UnreachableError, url)
    digest = write(shelf / "tags.fmadapter", seed=7).digest
    total = sum(file.stat().st_size for file in (shelf / "tags.fmadapter").iterdir())
    with serving(build_catalog(shelf, PRIVATE)) as url:
        pulled = pull(url)
    assert (pulled.adapter.digest, pulled.num_fetched) == (digest, total)


def test_a_stalled_server_times_out(shelf: Path) -> None:
    with interrupted_server(shelf, 300_000, lambda handler: time.sleep(2)) as url:
        refused(UnreachableError, url, timeout_s=0.5)
    with serving(build_catalog(shelf, PRIVATE)) as url:
        pull(url).adapter.verify()


def test_a_killed_client_resumes(shelf: Path) -> None:
    script = (
        "import sys\nfrom openafm.adapters.delivery.client import pull_adapter\n"
        f"pull_adapter(sys.argv[1], 'tags', {SIGNATURE!r}, {KEY!r})"
    )
    with interrupted_server(shelf, 600_000, lambda handler: time.sleep(3)) as url:
        client = subprocess.Popen([sys.executable, "-c", script, url], stderr=subprocess.DEVNULL, env=dict(os.environ))
        deadline_s = time.monotonic() + 30
        while not any(part.stat().st_size > 100_000 for part in downloads()) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        client.send_signal(signal.SIGKILL)
        client.wait()
    kept = max(part.stat().st_size for part in downloads())
    assert installed_adapters() == []
    total = sum(file.stat().st_size for file in (shelf / "tags.fmadapter").iterdir())
    with serving(build_catalog(shelf, PRIVATE)) as url:
        pulled = pull(url)
    assert pulled.num_fetched <= total - kept
    pulled.adapter.verify()


def test_any_file_server_serves_adapters(shelf: Path, tmp_path: Path) -> None:
    """A server without ranges sends the whole file again."""
    catalog = build_catalog(shelf, PRIVATE)
    for path, served in catalog.files.items():
        (tmp_path / "www" / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(served.root / served.name, tmp_path / "www" / path[1:])
    (tmp_path / "www" / MANIFEST_PATH[1:]).write_bytes(catalog.signed)
    with interrupted_server(shelf, 500_000) as url:
        refused(UnreachableError, url)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    handler = functools.partial(Quiet, directory=str(tmp_path / "www"))
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
        pull(url).adapter.verify()
        (tmp_path / "www" / "fmadapter-titles-0123456" / "metadata.json").unlink()
        refused(UnreachableError, url, "404", name="titles")


def test_a_part_larger_than_the_file_of_the_server_restarts(shelf: Path) -> None:
    """The file was truncated after the manifest was signed."""
    catalog = build_catalog(shelf, PRIVATE)
    with interrupted_server(shelf, 500_000) as url:
        refused(UnreachableError, url)
    weights = shelf / "tags.fmadapter" / "adapter_weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:400_000])
    with serving(catalog) as url:
        refused(UnreachableError, url, "400,000")


def test_an_unreachable_server_is_a_typed_error(tmp_path: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    url = f"http://127.0.0.1:{server.server_port}"
    server.server_close()
    refused(UnreachableError, url, "cannot be reached")
    for address in ("", "127.0.0.1:80", f"file://{tmp_path}", "ftp://x", "http://", "http://[", "http://x/é"):
        refused(UnreachableError, address, "is not the URL")
    refused(UnreachableError, "http://..", "cannot be reached")


def test_concurrent_pulls_of_one_adapter_are_refused(shelf: Path) -> None:
    with serving(build_catalog(shelf, PRIVATE)) as url, folder_lock(data_home() / "downloads" / "fmadapter-tags-0123456"):
        refused(FolderInUseError, url)
        pull(url, "titles").adapter.verify()


@pytest.mark.parametrize(
    ("asked", "status", "sent"),
    [
        ({}, 200, range(100)),
        ({"Range": "bytes=10-"}, 206, range(10, 100)),
        ({"Range": "bytes=10-19"}, 206, range(10, 20)),
        ({"Range": "bytes=90-500"}, 206, range(90, 100)),
        ({"Range": "bytes=-7"}, 206, range(93, 100)),
        ({"Range": "bytes=-700"}, 206, range(100)),
        ({"Range": "bytes=100-"}, 416, range(0)),
        ({"Range": "bytes=-0"}, 416, range(0)),
        ({"Range": "bytes=1-2,4-5"}, 200, range(100)),
        ({"Range": "lines=1-2"}, 200, range(100)),
        ({"Range": f"bytes={'9' * 5000}-"}, 200, range(100)),
        ({"Range": "bytes=10-", "If-Range": '"DIGEST"'}, 206, range(10, 100)),
        ({"Range": "bytes=10-", "If-Range": '"another"'}, 200, range(100)),
    ],
)
def test_ranges(tmp_path: Path, asked: dict[str, str], status: int, sent: range) -> None:
    content = bytes(range(100))
    (tmp_path / "file").write_bytes(content)
    shelf = Catalog(
        manifest=AdapterManifest(published=0, adapters=()),
        signed=b"",
        files={"/x/file": ServedFile(root=tmp_path, name="file", digest="DIGEST")},
    )
    with serving(shelf) as url:
        for method in ("GET", "HEAD"):
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            connection.request(method, "/x/file", headers=asked)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == status
            assert int(answer.headers["Content-Length"]) == len(sent)
            assert body == (content[sent.start : sent.stop] if method == "GET" else b"")
            if status != 200:
                expected = f"bytes {sent.start}-{sent.stop - 1}/100" if status == 206 else "bytes */100"
                assert answer.headers["Content-Range"] == expected
            connection.close()


def test_the_server_serves_no_other_paths(shelf: Path) -> None:
    (shelf / "secret").write_text("x")
    with serving(build_catalog(shelf, PRIVATE)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        for path in ("/", "/secret", "/../secret", "/fmadapter-tags-0123456/../../secret", "/fmadapter-tags-0123456", "//"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (404, b"")
        connection.close()


def test_clients_that_stall_or_disconnect_are_dropped(
    shelf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module._Handler, "timeout", 0.2)
    with serving(build_catalog(shelf, PRIVATE)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"GET /manifest.json HTTP/1.1\r\n")
            assert client.recv(1) == b"", "the server still waits for the rest of the request"
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
            client.sendall(b"GET /fmadapter-tags-0123456/adapter_weights.safetensors HTTP/1.1\r\n\r\n")
        pull(url).adapter.verify()
    assert "Exception" not in capsys.readouterr().err


def test_an_address_in_use_is_a_typed_error(shelf: Path) -> None:
    catalog = build_catalog(shelf, PRIVATE)
    server = make_server(catalog, "127.0.0.1", 0)
    for port in (server.server_port, 70_000):
        with pytest.raises(DeliverySetupError, match=f"127.0.0.1:{port} .*--port"):
            make_server(catalog, "127.0.0.1", port)
    server.server_close()


def test_a_folder_that_cannot_be_served_is_refused(tmp_path: Path, shelf: Path) -> None:
    with pytest.raises(AdapterNotFoundError, match="has no adapters"):
        build_catalog(tmp_path / "nothing", PRIVATE)
    shutil.copytree(shelf / "tags.fmadapter", shelf / "again")
    with pytest.raises(ConfigError, match="twice"):
        build_catalog(shelf, PRIVATE)


def test_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "mine"
    key = write_key_pair(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_public_key(public_file(file)) == read_public_key(key) == key == public_key(read_private_key(file))
    for wrong, read in ((file, read_public_key), (public_file(file), read_private_key)):
        with pytest.raises(DeliverySetupError, match="of its pair") as refused:
            read(wrong)
        assert read_private_key(file) not in str(refused.value)
    with pytest.raises(DeliverySetupError, match="lost"):
        write_key_pair(file)
    assert public_key(read_private_key(file)) == key
    file.unlink()
    with pytest.raises(DeliverySetupError, match="pub exists"):
        write_key_pair(file)
    assert read_public_key(public_file(file)) == key
    assert not file.exists()
    for wrong in (tmp_path / "none", "0" * 63, "x" * 64, tmp_path):
        with pytest.raises(DeliverySetupError, match="64 hex digits"):
            read_public_key(wrong)


def test_the_signature_library_is_imported_on_first_use(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys, openafm.adapters.delivery.client, openafm.adapters.delivery.server, openafm.cli.main\n"
        "assert not {'cryptography', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    catalog = build_catalog(shelf, PRIVATE)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with serving(catalog) as url:
        refused(DeliverySetupError, url, r"openafm\[delivery\]")


@pytest.mark.parametrize(
    ("spellings", "canonical"),
    [
        (("http://127.0.0.1:80/", "HTTP://127.1", "http://0x7f000001/./", "http://2130706433//"), "http://127.0.0.1"),
        (("https://Example.COM:443/a/../b/", "https://example.com./%62"), "https://example.com/b"),
        (("http://[0:0::1]:8646", "http://[::1]:8646/"), "http://[::1]:8646"),
        (("http://x:8080/a%2Fb",), "http://x:8080/a/b"),
    ],
)
def test_all_spellings_of_a_url_have_one_record(spellings: tuple[str, ...], canonical: str) -> None:
    assert {canonical_url(url) for url in spellings} == {canonical}
    for url in (canonical, *spellings):
        remember_publisher(Publisher(url=canonical_url(url), key=KEY, published=2))
        with pytest.raises(UntrustedDeliveryError, match="older"):
            remember_publisher(Publisher(url=canonical_url(url), key=KEY, published=1))


@pytest.mark.parametrize("url", ["http://u:p@x", "http://x/?a", "http://x/#a", "http://x:99999", "http://x y", "x://x"])
def test_urls_with_other_parts_are_refused(url: str) -> None:
    with pytest.raises(UnreachableError, match="not the URL"):
        canonical_url(url)


def test_an_older_manifest_under_another_spelling_is_refused(shelf: Path) -> None:
    catalog = build_catalog(shelf, PRIVATE)
    server = make_server(catalog, "127.0.0.1", 0)
    with running(server) as url:
        pull(url)
        older = AdapterManifest(published=catalog.manifest.published - 1, adapters=catalog.manifest.adapters)
        handler: Any = server.RequestHandlerClass
        handler.served = Catalog(manifest=older, signed=sign_manifest(older, PRIVATE), files=catalog.files)
        refused(UntrustedDeliveryError, url.replace("127.0.0.1", "127.1"), "older", name="titles")


def points_of_small_order() -> set[int]:
    """The y coordinates of the points P of edwards25519 with 8 P = 0, by the addition law."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p

    def doubled(x: int, y: int) -> tuple[int, int]:
        t = d * x * x * y * y
        return 2 * x * y * pow(1 + t, -1, p) % p, (y * y + x * x) * pow(1 - t, -1, p) % p

    root = pow(2, (p - 1) // 4, p)  # of -1
    found = {1, p - 1, 0}  # orders 1, 2 and 4
    # An x with doubled(x, y) = (+-root, 0) has x^2 = -y^2, and the curve equation gives d y^4 + 2 y^2 - 1 = 0.
    for branch in (1, -1):
        discriminant = (1 + d) % p
        s = pow(discriminant, (p + 3) // 8, p)
        s = s if s * s % p == discriminant else s * root % p
        square = (-1 + branch * s) * pow(d, -1, p) % p
        y = pow(square, (p + 3) // 8, p)
        y = y if y * y % p == square else y * root % p
        if y * y % p == square:
            for each in (y, p - y):
                assert doubled(*doubled(*doubled(root * each % p, each))) == (0, 1)
                found.add(each)
    return found


def test_keys_of_small_order_are_refused(shelf: Path) -> None:
    points = points_of_small_order()
    assert len(points) == 5
    weak = {(y + sign * 2**255).to_bytes(32, "little").hex() for y in points for sign in (0, 1)}
    weak |= {(2**255 - 19 + y).to_bytes(32, "little").hex() for y in (0, 1, 18)}  # not in canonical form
    for key in weak:
        with pytest.raises(DeliverySetupError, match="small order"):
            read_public_key(key)
    # With the neutral element as key, R = s B is a valid signature of every message.
    catalog = build_catalog(shelf, PRIVATE)
    text = json.loads(catalog.signed)["manifest"]
    neutral = (1).to_bytes(32, "little").hex()
    forged = {"manifest": text, "key": neutral, "signature": neutral + "0" * 64}
    with serving(Catalog(manifest=catalog.manifest, signed=json.dumps(forged).encode(), files=catalog.files)) as url:
        refused(UntrustedDeliveryError, url, "not signed", key=None)


def drip_file(handler: Any) -> None:
    with contextlib.suppress(OSError):
        for _ in range(200):
            handler.wfile.write(b"x")
            time.sleep(0.05)


def test_a_server_that_sends_one_byte_at_a_time_hits_the_deadline(shelf: Path) -> None:
    with interrupted_server(shelf, 1000, drip_file) as url:
        started_s = time.monotonic()
        refused(UnreachableError, url, "limit of 1 seconds has passed", total_s=1.0)
        assert time.monotonic() - started_s < 5
    listener = socket.create_server(("127.0.0.1", 0))  # accepts connections and sends half a header, byte by byte

    def drip() -> None:
        connection, _ = listener.accept()
        with contextlib.suppress(OSError), connection:
            for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)

    thread = threading.Thread(target=drip)
    thread.start()
    refused(UnreachableError, f"http://127.0.0.1:{listener.getsockname()[1]}", "limit of 0.5 seconds", total_s=0.5)
    listener.close()
    thread.join()


def test_the_server_answers_a_limited_number_of_connections(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    with serving(build_catalog(shelf, PRIVATE)) as url:
        host, port = url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(9)]
        assert [connection.recv(12) for connection in idle[3:]] == [b"HTTP/1.1 503"] * 6
        for connection in idle:
            connection.close()
        time.sleep(0.2)  # until the server has noticed
        pull(url).adapter.verify()


def test_a_request_that_never_ends_hits_the_deadline(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_S", 0.3)
    with serving(build_catalog(shelf, PRIVATE)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            started_s = time.monotonic()
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /manifest.json HTTP/1.1\r\nX: ")
                while time.monotonic() - started_s < 5:
                    client.sendall(b"x")  # well within the timeout of 60 seconds without a byte
                    time.sleep(0.02)
            assert time.monotonic() - started_s < 5


def test_redirections_stay_on_the_server_or_lead_to_https(shelf: Path) -> None:
    catalog, locations = build_catalog(shelf, PRIVATE), ["/moved/manifest.json"]

    class Redirecting(server_module._Handler):
        served = catalog

        def do_GET(self) -> None:  # noqa: N802
            if self.path == MANIFEST_PATH:
                self.send_response(302)
                self.send_header("Location", locations[0])
                self.end_headers()
            else:
                self.path = self.path.removeprefix("/moved")
                super().do_GET()

    redirecting = server_module._Server(("127.0.0.1", 0), Redirecting)
    with serving(catalog) as other, running(redirecting) as url:
        pull(url).adapter.verify()
        locations[0] = f"{other}/manifest.json"
        refused(UnreachableError, url, "redirections stay on the server", base=OTHER_SIGNATURE)


@pytest.mark.parametrize(
    "private", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1", "100.64.0.1"]
)
def test_a_download_from_a_public_address_never_connects_to_a_private_one(
    private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {"public.example": "93.184.215.14", "private.example": private}
    ends = [end for _ in range(3) for end in socket.socketpair()]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **_: [(0, 0, 0, "", (addresses[host], port))])
    monkeypatch.setattr(socket, "create_connection", lambda *_: ends.pop())
    with Download(10, 10) as download:
        download.connect(("private.example", 443)).close()  # a server in the own network
        download.connect(("public.example", 443)).close()
        with pytest.raises(UnreachableError, match="private address"):
            download.connect(("private.example", 443))
    for end in ends:
        end.close()
