"""Settings for all tests: no deadlines in property tests; one cache for compiled code."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("openafm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("openafm")


def pytest_configure(config: pytest.Config) -> None:
    """Use one cache for all test processes and a home for each worker, apart from the user's; one thread for each engine."""
    home = str(config.rootpath / ".pytest_cache" / "home")
    if os.environ.setdefault("OPENAFM_HOME", home) == home:  # one for each worker: tests replace the key of saved sessions
        os.environ["OPENAFM_HOME"] = home + os.environ.get("PYTEST_XDIST_WORKER", "")
    os.environ.setdefault("OPENAFM_CACHE", str(config.rootpath / ".pytest_cache" / "openafm"))
    os.environ.setdefault("OPENAFM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of a GPU where torch finds none."""
    of_gpus = [item for item in items if item.get_closest_marker("gpu")]
    if of_gpus:  # importing torch takes seconds
        import torch

        if not torch.cuda.is_available():
            for item in of_gpus:
                item.add_marker(pytest.mark.skip(reason="torch finds no GPU"))


def pytest_collection_finish() -> None:
    """Exempt the objects of imported modules from garbage collection, so that a full collection takes milliseconds."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Do the same after each file: what its tests imported and cached stays until the process ends."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long bytes by their parameter: archives and PDFs contain the time, and workers must collect equal names."""
    return argname if isinstance(val, bytes) and len(val) > 40 else None
