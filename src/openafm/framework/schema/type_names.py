"""Resolution of annotations, including names inside functions and names that are defined later."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints
from weakref import WeakValueDictionary

from openafm.framework.errors import InvalidGenerationSchemaError

_local_classes: WeakValueDictionary[str, type] = WeakValueDictionary()  # classes inside functions, by full name


class TypeNames:
    """Resolve the annotations of a class or function in its scope.

    Args:
        annotated: the class or function.
        annotations: its unresolved annotations.
        local_names: the local names of the enclosing function. Mentioned names are kept until resolution.
    """

    def __init__(self, annotated: Any, annotations: Iterable[Any], local_names: Mapping[str, Any]) -> None:
        self._annotated = annotated
        self._scope = f"{annotated.__module__}.{annotated.__qualname__}".removesuffix(annotated.__name__)
        self._hints: dict[str, Any] | None = None
        is_local = "." in annotated.__qualname__
        if is_local and isinstance(annotated, type):
            _local_classes[self._scope + annotated.__name__] = annotated
        mentioned = set(re.findall(r"\w+", " ".join(map(str, annotations)))) if is_local else set()
        self._local_names = {name: local_names[name] for name in mentioned & local_names.keys()}

    def type_hints(self) -> dict[str, Any]:
        """Return the resolved types by name.

        Raises:
            InvalidGenerationSchemaError: a name is undefined in that scope.
        """
        if self._hints is None:
            siblings = {name.removeprefix(self._scope): cls for name, cls in _local_classes.items()}
            names = siblings | self._local_names | {self._annotated.__name__: self._annotated}
            try:
                self._hints = get_type_hints(self._annotated, localns=names, include_extras=True)
            except Exception as error:  # annotations are arbitrary expressions of the caller
                raise InvalidGenerationSchemaError(
                    f"the type hints of {self._annotated.__name__} cannot be resolved ({error});"
                    " use types that are defined in its scope"
                ) from error
            self._local_names = {}  # no longer needed
        return self._hints
