"""For every room: property tests judge by results, never by the clock of a busy machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("openafm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("openafm")
