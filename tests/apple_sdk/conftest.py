import gc
import time

import pytest
from stand_in import StandInModel

from openafm.apple_sdk import binding, bridged_session
from openafm.apple_sdk.handles import HANDLES


@pytest.fixture
def stand_in(monkeypatch):
    """Sessions of the binding are answered by the stand-in model."""
    for module in (binding, bridged_session):
        monkeypatch.setattr(module, "SystemLanguageModel", StandInModel)
    return StandInModel


@pytest.fixture
def no_leaks():
    """The test ends with as many objects alive as it began with."""
    gc.collect()
    before = len(HANDLES)
    yield
    for _ in range(200):  # threads of the binding may still be on their way out
        gc.collect()
        if len(HANDLES) == before:
            break
        time.sleep(0.01)
    assert len(HANDLES) == before
