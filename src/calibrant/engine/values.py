"""Values of a recipe: reading one as the type of its key, from TOML or a command line, and writing it as TOML."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

# How a message calls the kinds of values.
_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def plain_value(value: object) -> Any:
    """Return dataclasses and mappings as dictionaries without their None entries, tuples as lists, other values as they are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: plain_value(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {str(k): plain_value(v) for k, v in value.items()}
    return [plain_value(v) for v in value] if isinstance(value, tuple) else value


def toml_value(value: object) -> str:
    """Return a plain value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML's basic strings are those of JSON, but that it refuses DEL as it is, too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    return repr(value)


def read_value(hint: Any, value: object, key: str) -> object:
    """Check ``value`` against a type hint; text, as it comes from a command line, is converted to it."""
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            names = ", ".join(repr(name) for name in get_args(hint))
            near = difflib.get_close_matches(str(value), [str(name) for name in get_args(hint)], n=1, cutoff=0.5)
            remedy = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"recipe: `{key}` must be one of {names}, got {value!r}.{remedy}")
        return value
    if origin in (Union, types.UnionType):
        inner = [h for h in get_args(hint) if h is not type(None)]
        return None if value is None or value in ("none", "None") else _one_of(inner, value, key)
    if origin is tuple:
        items = (value.split(",") if value.strip() else []) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise ValueError(f"recipe: `{key}` must be a list, got {value!r}.")
        return tuple(read_value(get_args(hint)[0], item, key) for item in items)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"recipe: `{key}` must be a table of options, got {value!r}.")
        return {str(k): _guess(v) for k, v in value.items()}
    return _scalar(hint, value, key)


def _one_of(hints: list[Any], value: object, key: str) -> object:
    """Read ``value`` as the first of several kinds that it can be; where it can be none, the message names all of them."""
    for hint in hints:
        try:
            return read_value(hint, value, key)
        except ValueError:
            if len(hints) == 1:
                raise
    words = [_KINDS.get(hint) or " or ".join(map(repr, get_args(hint))) for hint in hints]
    raise ValueError(f"recipe: `{key}` must be {' or '.join(words)}, got {value!r}.")


def _scalar(hint: type, value: object, key: str) -> object:
    text = value.strip() if isinstance(value, str) else None
    try:
        if hint is bool:
            if isinstance(value, bool):
                return value
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[(text or "?").lower()]
        if hint is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if hint is int and not isinstance(value, bool) and (text is not None or float(value) == int(value)):  # type: ignore[arg-type, call-overload]
            return int(text if text is not None else value)  # type: ignore[call-overload]
        if hint is float and not isinstance(value, bool):
            return float(text if text is not None else value)  # type: ignore[arg-type]
        if hint is str and isinstance(value, str):
            return value
    except (ValueError, TypeError, KeyError, OverflowError):
        pass
    raise ValueError(f"recipe: `{key}` must be {_KINDS[hint]}, got {value!r}.")


def _guess(value: object) -> object:
    """Read an option given as text as the bool, number or numbers it looks like; options are checked by their method."""
    if isinstance(value, (list, tuple)):
        return tuple(_guess(item) for item in value)
    if not isinstance(value, str):
        return value
    if "," in value:
        return tuple(_guess(item.strip()) for item in value.split(","))
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
