import ctypes
import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.apple_sdk.handles import FreedHandleError, HandleTable


class Thing:
    pass


def test_a_handle_works_as_number_and_as_pointer():
    table, thing = HandleTable(), Thing()
    handle = table.new(thing)
    for pointer in (handle, int(handle), ctypes.c_void_p(handle)):
        assert table.get(pointer, Thing) is thing


@pytest.mark.parametrize("pointer", [None, 0, 12345, ctypes.c_void_p()])
def test_invalid_handles_raise(pointer):
    with pytest.raises(FreedHandleError, match="null or was released"):
        HandleTable().get(pointer, Thing)


def test_handles_of_another_type_raise():
    table = HandleTable()
    handle = table.new(Thing())
    with pytest.raises(FreedHandleError, match="is a Thing"):
        table.get(handle, int)


def test_releasing_frees_the_object_before_the_handle():
    table, thing = HandleTable(), Thing()
    gone = weakref.ref(thing)
    handle = table.new(thing)
    del thing
    table.release(handle)
    assert gone() is None
    with pytest.raises(FreedHandleError):
        table.get(handle, Thing)


def test_deleted_handles_free_their_objects():
    table = HandleTable()
    handle = table.new(Thing())
    assert len(table) == 1
    del handle
    gc.collect()
    assert len(table) == 0


def test_handed_over_objects_live_until_released():
    table = HandleTable()
    number = table.hand_over(Thing())
    gc.collect()
    assert len(table) == 1
    table.release(number)
    assert len(table) == 0


def test_cycles_through_handles_are_collected():
    table = HandleTable()
    one, other = Thing(), Thing()
    one.other, other.other = table.new(other), table.new(one)
    del one, other
    gc.collect()
    assert len(table) == 0


@given(st.lists(st.booleans(), max_size=30), st.booleans())
def test_an_object_lives_while_it_has_references(steps, handed_over):
    table, thing = HandleTable(), Thing()
    handle = table.hand_over(thing) if handed_over else table.new(thing)
    claims = 1
    for retain in steps:
        if claims:
            claims += 1 if retain else -1
        table.retain(handle) if retain else table.release(handle)
        assert len(table) == (claims > 0)


def test_retained_objects_outlive_their_handle():
    table = HandleTable()
    handle = table.new(Thing())
    number = int(handle)
    table.retain(handle)
    del handle
    gc.collect()
    assert isinstance(table.get(number, Thing), Thing)


def test_fifty_threads_leave_no_objects():
    table = HandleTable()

    def work():
        for _ in range(200):
            number = table.hand_over(Thing())
            table.retain(number)
            table.get(number, Thing)
            table.release(number)
            table.release(number)
            table.release(number)  # one release too many

    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table) == 0
