"""The clock and the random numbers of a call, for modules that read those of the system."""

from __future__ import annotations

import contextlib
import datetime
import random
import time
import types
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from openafm.annotation.environments.world import World


@contextlib.contextmanager
def call_clock(modules: Iterable[types.ModuleType], world: World) -> Iterator[None]:
    """Replace `datetime`, `time`, `uuid` and `random` in modules inside the block, so that a replay gives the same state."""
    substitutes = _substitutes(world)
    replaced = [
        (module, name, value) for module in modules for name, value in list(vars(module).items()) if id(value) in substitutes
    ]
    try:
        for module, name, value in replaced:
            setattr(module, name, substitutes[id(value)])
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


def _substitutes(world: World) -> dict[int, Any]:
    """Return the substitute of each module, class and function of the standard library, by identity."""
    clock = _clock(world.now)

    def new_uuid(*_: Any, **__: Any) -> uuid.UUID:
        return uuid.UUID(int=world.random.getrandbits(128), version=4)

    def timestamp() -> float:
        return world.now.timestamp()

    return {
        id(datetime): types.SimpleNamespace(**{**vars(datetime), "datetime": clock}),
        id(datetime.datetime): clock,
        id(time): types.SimpleNamespace(**{**vars(time), "time": timestamp}),
        id(time.time): timestamp,
        id(uuid): types.SimpleNamespace(**{**vars(uuid), "uuid1": new_uuid, "uuid4": new_uuid}),
        id(uuid.uuid4): new_uuid,
        id(random): world.random,
    }


def _clock(now: datetime.datetime) -> type:
    """Return a class like `datetime.datetime` whose present is `now`; its values are of the usual class."""

    class Instances(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, datetime.datetime)

    class Clock(datetime.datetime, metaclass=Instances):
        def __new__(cls, *values: Any, **named: Any) -> Any:
            return datetime.datetime(*values, **named)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return now.astimezone(tz) if tz is not None else now

        @classmethod
        def today(cls) -> Any:
            return now

        @classmethod
        def utcnow(cls) -> Any:
            return now.astimezone(datetime.UTC).replace(tzinfo=None)

    return Clock
