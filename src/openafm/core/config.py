"""Configs: frozen, keyword-only dataclasses that describe a component completely and build it.

A recipe (`recipes/`) is a function that returns one tree of configs. This module converts trees to JSON and back and
replaces single values by dotted key. Unknown keys are errors that name the nearest known key.

A field annotated with a base class, or with a union of configs, accepts any subclass, called a kind; its JSON form holds the
class name under `"type"`. `core/registry.py` loads kinds that are defined outside openafm. Imports no tensor library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import json
import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from openafm.core.errors import UsageError
from openafm.core.registry import ENTRY_POINT_GROUP, ENVIRONMENT_VARIABLE, discover_kind

ConfigT = TypeVar("ConfigT", bound="Config")


class ConfigError(UsageError):
    """A config value is out of range, missing or of the wrong type."""


class UnknownKeyError(ConfigError):
    """The config class has no such key; the message names the nearest key."""


class UnknownKindError(ConfigError):
    """No loaded config class has this name. The message names the nearest class and how to load others.

    Readers of bundles, checkpoints, runs and adapters let it pass: the data is intact, a plugin is missing.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every config. Subclasses are frozen, keyword-only dataclasses and check their values in `__post_init__`."""

    FORMER_NAMES: ClassVar[tuple[str, ...]] = ()
    """Class names under which JSON of earlier versions holds this very class; subclasses do not inherit them."""

    def require(self, condition: bool, message: str) -> None:
        """Raise `ConfigError` prefixed with the class name unless `condition` holds."""
        if not condition:
            raise ConfigError(f"{type(self).__name__}: {message}")


def to_dict(config: Config) -> dict[str, Any]:
    """Return the JSON form of a config; `from_dict` reads it back to an equal object."""
    hints = _type_hints(type(config))
    return {
        field.name: _value_to_json(getattr(config, field.name), hints[field.name]) for field in dataclasses.fields(config)
    }


def to_tagged_dict(config: Config, declared: type[Config]) -> dict[str, Any]:
    """Return the JSON form of a config where a `declared` is expected: a subclass is named by `type`."""
    return cast("dict[str, Any]", _value_to_json(config, declared))


def from_dict(cls: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Build a config of class `cls` from its JSON form.

    Raises:
        UnknownKeyError: the class has no such key.
        UnknownKindError: no loaded class has the name of a `"type"`.
        ConfigError: a value is missing, out of range or of the wrong type.
    """
    return _config_from_json(cls, values, path=cls.__name__)


def dump(config: Config) -> str:
    """Return the config as indented JSON text with keys in declared order, the form of golden files and checkpoints."""
    return json.dumps(to_dict(config), indent=2, ensure_ascii=False) + "\n"


def override(config: ConfigT, changes: Mapping[str, str]) -> ConfigT:
    """Return a copy of `config` with the values at dotted keys replaced, as in `{"optimizer.learning_rate": "3e-4"}`.

    An item of a list of configs has its `name` as key, or its index: `{"stages.extract.max_page_mb": "8"}`.
    Values are JSON (`3e-4`, `true`, `null`, `[1, 2]`). Text that is not JSON is a string, as is text for a string field.
    """
    return _override(config, {tuple(dotted.split(".")): text for dotted, text in changes.items()}, "", type(config))


def nearest(name: str, known: list[str]) -> str:
    """Return a clause such as `; did you mean 'optimizer'?`, or the list of known names if none is similar.

    The clause is empty if there are no known names.
    """
    if not known:
        return ""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"


def _override(config: ConfigT, changes: Mapping[tuple[str, ...], str], path: str, declared: Any) -> ConfigT:
    """Apply all changes to one config, in a field with the hint `declared`, together, so that it is checked once."""
    hints = _type_hints(type(config))
    names = [field.name for field in dataclasses.fields(config)]
    replaced: dict[str, Any] = {}
    for name in dict.fromkeys(keys[0] for keys in changes):
        dotted = f"{path}{name}"
        if name not in names:
            advice = _advice(type(config), name, declared, path) or nearest(name, names)
            raise UnknownKeyError(f"unknown key '{dotted}': {type(config).__name__} has no '{name}'{advice}")
        value = getattr(config, name)
        if (name,) in changes:
            value = _value_from_text(hints[name], changes[(name,)], dotted)
        below = {keys[1:]: change for keys, change in changes.items() if keys[0] == name and len(keys) > 1}
        if below and _is_list_of_configs(value):
            replaced[name] = _override_items(value, below, dotted)
            continue
        if below and not isinstance(value, Config):
            raise UnknownKeyError(
                f"unknown key '{dotted}.{next(iter(below))[0]}': '{dotted}' is a value, with no keys below it"
            )
        replaced[name] = _override(value, below, f"{dotted}.", hints[name]) if below else value
    return dataclasses.replace(config, **replaced)


def _advice(cls: type[Config], name: str, declared: Any, path: str) -> str:
    """Return a clause with the other kinds of the field at `path` that have the key `name`; empty without any."""
    members = [declared, *get_args(declared)]
    bases = [each for each in members if isinstance(each, type) and issubclass(each, Config)]
    kinds = {kind: None for base in bases for kind in _kinds(base).values()}
    others = [
        kind.__name__ for kind in kinds if kind is not cls and name in {field.name for field in dataclasses.fields(kind)}
    ]
    if not others:
        return ""
    keys = ", ".join(field.name for field in dataclasses.fields(cls))
    value = json.dumps({"type": others[0], name: "VALUE"}).replace('"VALUE"', "VALUE")
    return f", its keys are: {keys or 'none'}; {' and '.join(others)} has it: set {path[:-1]} to {value}"


def _is_list_of_configs(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, Config) for item in value)


def _override_items(items: tuple[Any, ...], changes: Mapping[tuple[str, ...], str], path: str) -> tuple[Any, ...]:
    """Apply changes to configs of a list. The key of an item is its `name`, or its index if it has none."""
    names = [str(getattr(item, "name", index)) for index, item in enumerate(items)]
    replaced = list(items)
    for key in dict.fromkeys(keys[0] for keys in changes):
        if key not in names:
            raise UnknownKeyError(f"unknown key '{path}.{key}'{nearest(key, names)}")
        index = names.index(key)
        if (key,) in changes:
            raise ConfigError(
                f"{path}.{key}: an item is not replaced as a whole; change one of its keys, or all of '{path}'"
            )
        below = {keys[1:]: change for keys, change in changes.items() if keys[0] == key}
        replaced[index] = _override(items[index], below, f"{path}.{key}.", type(items[index]))
    return tuple(replaced)


def _value_from_text(hint: Any, text: str, path: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    try:
        return _value_from_json(hint, value, path)
    except ConfigError:
        with contextlib.suppress(ConfigError):
            return _value_from_json(hint, text, path)  # a string that is also JSON, such as a name of digits
        raise


def _value_to_json(value: Any, hint: Any) -> Any:
    if isinstance(value, Config):
        tag = {} if hint is type(value) else {"type": type(value).__name__}
        return tag | to_dict(value)
    if isinstance(value, tuple):
        item_hint = get_args(hint)[0] if get_origin(hint) is tuple else Any
        return [_value_to_json(item, item_hint) for item in value]
    if isinstance(value, dict):
        item_hint = get_args(hint)[1] if get_origin(hint) is dict else Any
        return {key: _value_to_json(item, item_hint) for key, item in value.items()}
    return value


def _config_from_json(cls: type[ConfigT], values: Any, path: str) -> ConfigT:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}: expected an object with the keys of {cls.__name__}, got {values!r}")
    cls = _concrete_class(cls, values, path)
    hints = _type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for key, value in values.items():
        if key == "type" and "type" not in fields:
            continue
        if key not in fields:
            raise UnknownKeyError(f"unknown key '{path}.{key}'{nearest(key, list(fields))}")
        arguments[key] = _value_from_json(hints[key], value, f"{path}.{key}")
    missing = [
        name
        for name, field in fields.items()
        if name not in arguments and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{path}: missing {', '.join(missing)}")
    return cls(**arguments)


def _type_hints(cls: type[Config]) -> dict[str, Any]:
    hints = _hints_of_classes.get(cls)
    if hints is None:
        hints = _hints_of_classes[cls] = get_type_hints(cls)
    return hints


_hints_of_classes: WeakKeyDictionary[type[Config], dict[str, Any]] = WeakKeyDictionary()  # get_type_hints is slow


def _concrete_class(cls: type[ConfigT], values: Mapping[str, Any], path: str) -> type[ConfigT]:
    """Return the class that `values["type"]` names, `cls` itself without one."""
    if "type" not in values and not inspect.isabstract(cls):
        return cls
    found = _kinds(cls)
    if "type" not in values:
        raise ConfigError(f'{path}: missing "type", the class name of a {cls.__name__}; known: {", ".join(found)}')
    name = values["type"]
    if isinstance(name, str) and name not in found:
        discover_kind(name)
        found = _kinds(cls)
    if not isinstance(name, str) or name not in found:
        raise _unknown_kind(name, [cls], path)
    return found[name]


def _kinds(cls: type[ConfigT]) -> dict[str, type[ConfigT]]:
    """Return the loaded concrete classes below `cls`, itself included, by their current and former names."""
    classes = [each for each in _subclasses(cls) if not inspect.isabstract(each)]
    former = {name: each for each in classes for name in each.__dict__.get("FORMER_NAMES", ())}
    return former | {each.__name__: each for each in classes}


def _subclasses(cls: type[ConfigT]) -> list[type[ConfigT]]:
    return [cls] + [below for child in cls.__subclasses__() for below in _subclasses(child)]


def _unknown_kind(name: object, bases: Sequence[type[Config]], path: str) -> UnknownKindError:
    known = list(dict.fromkeys(each.__name__ for base in bases for each in _kinds(base).values()))
    return UnknownKindError(
        f"{path}: unknown type {name!r} of {' or '.join(base.__name__ for base in bases)}{nearest(str(name), known)}. If a "
        f"plugin defines it, load its package with --plugins MODULE, {ENVIRONMENT_VARIABLE} or an entry point of the group "
        f"'{ENTRY_POINT_GROUP}'"
    )


def _value_from_json(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _union_from_json(arguments, value, path)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{path}: expected one of {', '.join(map(repr, arguments))}, got {value!r}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path}: expected a list, got {value!r}")
        if arguments[-1] is Ellipsis:
            return tuple(_value_from_json(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        if len(value) != len(arguments):
            raise ConfigError(f"{path}: expected {len(arguments)} items, got {len(value)}")
        return tuple(
            _value_from_json(h, item, f"{path}[{i}]") for i, (h, item) in enumerate(zip(arguments, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected an object, got {value!r}")
        return {key: _value_from_json(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Config):
        return value if isinstance(value, hint) else _config_from_json(hint, value, path)
    return _scalar(hint, value, path)


def _union_from_json(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    members = [argument for argument in arguments if argument is not type(None)]
    configs = [member for member in members if isinstance(member, type) and issubclass(member, Config)]
    if isinstance(value, Mapping) and configs:
        return _config_from_json(_member(configs, value, path), value, path)
    for member in members:
        try:
            return _value_from_json(member, value, path)
        except ConfigError:
            if member is members[-1]:
                raise
    raise ConfigError(f"{path}: {value!r} is not allowed here")


def _member(configs: list[type[Config]], value: Mapping[str, Any], path: str) -> type[Config]:
    """Return the config class of a union that reads `value`: the first one without a `"type"`."""
    if "type" not in value or len(configs) == 1:
        return configs[0]
    name = value["type"]
    for is_discovered in (False, True):
        if is_discovered and isinstance(name, str):
            discover_kind(name)
        for member in configs:
            if isinstance(name, str) and name in _kinds(member):
                return member
    raise _unknown_kind(name, configs, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{path}: the number is too large") from error
    if isinstance(value, hint) and not (hint in (int, float) and isinstance(value, bool)):
        return value
    raise ConfigError(f"{path}: expected {hint.__name__}, got {value!r}")
