"""A small client of the binding that acts like a C program: handles, byte strings, callbacks."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from openafm.apple_sdk import binding as lib


class Outcome:
    """Wait for one callback."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.arguments: tuple[Any, ...] = ()
        self.thread: int | None = None

    def __call__(self, *arguments: Any) -> None:
        self.arguments, self.thread = arguments, threading.get_ident()
        self.called.set()

    def wait(self) -> tuple[Any, ...]:
        assert self.called.wait(30)
        return self.arguments


class Errors:
    """Hold the two error outputs of a call."""

    def __init__(self) -> None:
        self.code, self.description = ctypes.c_int(), ctypes.POINTER(ctypes.c_char)()

    @property
    def outputs(self) -> tuple[Any, Any]:
        return ctypes.byref(self.code), ctypes.byref(self.description)

    def taken(self) -> tuple[int, str]:
        text = ctypes.string_at(self.description).decode()
        lib.FMFreeString(self.description)
        return self.code.value, text


def prompt(*texts: str) -> Any:
    handle = lib.FMComposedPromptInitialize()
    for text in texts:
        lib.FMComposedPromptAddText(handle, text.encode())
    return handle


def session(instructions: str | None = None, tools: tuple[Any, ...] = (), model: Any = None) -> Any:
    array = (ctypes.c_void_p * len(tools))(*tools)
    text = None if instructions is None else instructions.encode()
    return lib.FMLanguageModelSessionCreateFromSystemLanguageModel(model, text, array, len(tools))


def respond(handle: Any, text: str, options: bytes | None = None) -> tuple[Any, ...]:
    outcome = Outcome()
    words = prompt(text)
    task = lib.FMLanguageModelSessionRespond(handle, words, options, ctypes.c_void_p(7), outcome)
    arguments = outcome.wait()
    for each in (task, words):
        lib.FMRelease(each)
    return arguments


def schema(name: str, *properties: Any, references: tuple[Any, ...] = ()) -> Any:
    handle = lib.FMGenerationSchemaCreate(name.encode(), None)
    for reference in references:
        lib.FMGenerationSchemaAddReferenceSchema(handle, reference)
    for each in properties:
        lib.FMGenerationSchemaAddProperty(handle, each)
        lib.FMRelease(each)
    return handle


def prop(name: str, type_name: str, optional: bool = False, description: str | None = None) -> Any:
    text = None if description is None else description.encode()
    return lib.FMGenerationSchemaPropertyCreate(name.encode(), text, type_name.encode(), optional)


def tool(name: str, parameters: Any, callback: Any) -> Any:
    """Return a tool with a C callback, and the callback, which must be kept alive."""
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, lib.FMGeneratedContentRef, ctypes.c_uint)
    wrapped = kind(callback)
    return lib.FMBridgedToolCreate(name.encode(), b"a tool", parameters, wrapped, None, None), wrapped
