"""For every room: property tests judge by results, never by the clock of a busy machine; native code is compiled once."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("openafm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("openafm")


def pytest_configure(config: pytest.Config) -> None:
    """One cache for all tests and their processes, kept for the next run, and not the user's; one thread for each engine."""
    os.environ.setdefault("OPENAFM_CACHE", str(config.rootpath / ".pytest_cache" / "openafm"))
    os.environ.setdefault("OPENAFM_THREADS", "1")
