import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from openafm.apple_sdk import source
from openafm.apple_sdk.install import BINDING_MODULE, ForeignInstallError, install, status, uninstall
from openafm.apple_sdk.source import SourceUnavailableError, open_source
from openafm.cli.main import run

FILES = {
    "__init__.py": "from . import _ctypes_bindings as lib\nCONTEXT_REF = lib.FMGeneratedContentRef\n",
    "other.py": "NUMBER = 1\n",
}


@pytest.fixture
def sdist(tmp_path):
    return make_source(tmp_path / "source", "9.8.7")


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def make_source(root, version, name="apple-fm-sdk"):
    package = root / "src" / "apple_fm_sdk"
    package.mkdir(parents=True)
    for file, text in FILES.items():
        (package / file).write_text(text)
    (package / "lib").mkdir()
    (package / "lib" / "native.dylib").write_text("binary")
    (root / "PKG-INFO").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nProject-URL: Source, /somewhere\n"
    )
    (root / "LICENSE.md").write_text("license")
    return root


def names(site):
    return sorted(path.name for path in site.iterdir())


def test_the_package_is_installed_unchanged_with_our_binding(sdist, site):
    done = install(sdist, site)
    assert (done.version, done.is_ours, done.is_intact) == ("9.8.7", True, True)
    assert names(site) == ["apple_fm_sdk", "apple_fm_sdk-9.8.7.dist-info"]
    assert names(site / "apple_fm_sdk") == sorted([*FILES, BINDING_MODULE])
    assert all((site / "apple_fm_sdk" / file).read_text() == text for file, text in FILES.items())


def test_the_installed_package_finds_our_binding(sdist, site):
    install(sdist, site)
    code = "import apple_fm_sdk; print(apple_fm_sdk.lib.FMRelease.__module__)"
    variables = os.environ | {"PYTHONPATH": str(site)}
    said = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "openafm.apple_sdk.binding"


def test_python_and_pip_list_the_distribution(sdist, site):
    install(sdist, site)
    (found,) = importlib.metadata.distributions(name="apple-fm-sdk", path=[str(site)])
    assert found.version == "9.8.7"
    assert all(file.locate().is_file() for file in found.files)
    assert {str(file) for file in found.files} == {
        path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()
    }


def test_installing_twice_changes_nothing(sdist, site):
    install(sdist, site)
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    install(sdist, site)
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*")} == before


def test_an_archive_can_be_installed(sdist, site, tmp_path):
    archive = tmp_path / "apple_fm_sdk.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(sdist, "apple_fm_sdk-9.8.7")
    assert install(archive, site).version == "9.8.7"


def test_a_checkout_can_be_installed(sdist, site):
    (sdist / "PKG-INFO").unlink()
    (sdist / "pyproject.toml").write_text('[project]\nname = "apple-fm-sdk"\nversion = "9.9.9"\n')
    assert install(sdist, site).version == "9.9.9"


def test_another_version_replaces_the_old_one(sdist, site, tmp_path):
    install(sdist, site)
    install(make_source(tmp_path / "newer", "10.0.0"), site)
    assert names(site) == ["apple_fm_sdk", "apple_fm_sdk-10.0.0.dist-info"]


def test_changed_files_are_restored(sdist, site):
    install(sdist, site)
    (site / "apple_fm_sdk" / "other.py").write_text("NUMBER = 2\n")
    assert not status(site).is_intact
    assert install(sdist, site).is_intact


def test_uninstalling_leaves_nothing(sdist, site):
    install(sdist, site)
    assert uninstall(site)
    assert names(site) == []
    assert not uninstall(site)


@pytest.mark.parametrize("act", [lambda site, sdist: install(sdist, site), lambda site, sdist: uninstall(site)])
def test_a_foreign_installation_is_not_touched(sdist, site, act):
    install(sdist, site)
    (site / "apple_fm_sdk-9.8.7.dist-info" / "INSTALLER").write_text("pip\n")
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    with pytest.raises(ForeignInstallError, match="pip uninstall apple-fm-sdk"):
        act(site, sdist)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


def test_a_package_of_unknown_origin_is_not_touched(sdist, site):
    (site / "apple_fm_sdk").mkdir()
    (site / "apple_fm_sdk" / BINDING_MODULE).write_text("native")
    with pytest.raises(ForeignInstallError):
        install(sdist, site)


def test_something_else_is_refused(site, tmp_path):
    (tmp_path / "file.tar.gz").write_text("not an archive")
    for given in (tmp_path / "nowhere", tmp_path / "file.tar.gz", make_source(tmp_path / "other", "1", name="other")):
        with pytest.raises(SourceUnavailableError):
            install(given, site)
    assert names(site) == []


@pytest.mark.parametrize("version", ["../../evil", "1/../../evil", "1.0\\n", "", "x" * 300, "1.0 evil"])
def test_a_version_cannot_lead_out_of_the_environment(version, site, tmp_path):
    with pytest.raises(SourceUnavailableError, match="version"):
        install(make_source(tmp_path / "source", version), site)
    assert names(site) == []
    assert names(tmp_path) == ["site", "source"]


def test_without_an_index_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SourceUnavailableError, match="--from"):
        open_source(None, tmp_path)


def test_another_digest_is_refused(sdist, tmp_path, monkeypatch):
    served = tmp_path / "served"
    served.mkdir()
    with tarfile.open(served / f"apple_fm_sdk-{source.PINNED_VERSION}.tar.gz", "w:gz") as tar:
        tar.add(sdist, f"apple_fm_sdk-{source.PINNED_VERSION}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(served))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(SourceUnavailableError):
        open_source(None, tmp_path / "scratch")


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01])
def test_a_killed_install_leaves_a_whole_package_or_none(sdist, site, delay):
    for index in range(200):
        (sdist / "src" / "apple_fm_sdk" / f"module{index}.py").write_text("x" * 20_000)
    code = "import sys; from pathlib import Path; from openafm.apple_sdk.install import install; print('begun', flush=True);"
    code += " install(Path(sys.argv[1]), Path(sys.argv[2]))"
    process = subprocess.Popen([sys.executable, "-c", code, str(sdist), str(site)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (site / "apple_fm_sdk").exists():
        assert len(names(site / "apple_fm_sdk")) == 203
    assert install(sdist, site).is_intact
    assert [name for name in names(site) if not name.startswith(".")] == ["apple_fm_sdk", "apple_fm_sdk-9.8.7.dist-info"]


def test_the_command_line(sdist, site, monkeypatch, capsys):
    monkeypatch.setattr("openafm.apple_sdk.install._site_packages", lambda: site)
    assert run(["apple-sdk", "status"]) == 0
    assert "not installed" in capsys.readouterr().out
    assert run(["apple-sdk", "install", "--from", str(sdist)]) == 0
    assert "9.8.7" in capsys.readouterr().out
    assert run(["apple-sdk", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["installer"] == "openafm"
    assert run(["apple-sdk", "uninstall"]) == 0
    assert run(["apple-sdk", "install", "--from", str(site / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
