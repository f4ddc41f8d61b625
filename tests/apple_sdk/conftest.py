import gc
import time

import pytest
from stand_in import StandInModel

from openafm.apple_sdk import binding, bridged_session
from openafm.apple_sdk.handles import HANDLES


@pytest.fixture
def stand_in(monkeypatch):
    """Replace the model of the binding's sessions by the stand-in."""
    for module in (binding, bridged_session):
        monkeypatch.setattr(module, "SystemLanguageModel", StandInModel)
    return StandInModel


@pytest.fixture
def no_leaks():
    """Check that the test leaves no objects alive."""
    gc.collect()
    before = len(HANDLES)
    yield
    for _ in range(200):  # threads of the binding may still be ending
        gc.collect()
        if len(HANDLES) == before:
            break
        time.sleep(0.01)
    assert len(HANDLES) == before
