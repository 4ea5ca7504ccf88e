"""What a field of a request means and may hold: declared once beside the field, and read by every entrance.

request.py has the fields. The wire model, Triton's tensors, the command line, the Python API and the docs are made from
them, and all refuse a bad value with the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from oscine.errors import RequestError

_MAX_SHOWN_CHARS = 80  # of a value in an error message


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What stands beside the type of a field, as `Annotated[float | None, Spec(...)]`."""

    about: str  # for docs and help
    rule: str = ""  # completes "NAME must be ..."; "": what the type says
    least: float | None = None
    most: float | None = None
    above: float | None = None  # the value must be larger
    max_chars: int | None = None
    accepts: Callable[[Any], bool] | None = None  # a condition beyond the bounds


@dataclass(frozen=True, slots=True)
class RequestField:
    """A field with its type, default and spec."""

    name: str
    kind: Any  # bool, int, float, str, a Literal or a Mapping, without None; object: checked elsewhere
    default: Any
    optional: bool  # None is allowed
    spec: Spec

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a Literal; empty for other kinds."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def rule(self) -> str:
        if self.spec.rule:
            return self.spec.rule
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.kind is str and self.spec.max_chars:
            return f"a string of at most {self.spec.max_chars} characters"
        return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}[self.kind]

    def check(self, value: object, container: str = "") -> None:
        """Raises RequestError. `container`: what holds the field, such as "input[1]"."""
        if not ((value is None and self.optional) or self._accepts(value)):
            name = f"{container}.{self.name}" if container else self.name
            raise RequestError(self.refusal(value, name), name)

    def refusal(self, value: object, name: str) -> str:
        """The message for a bad value. `name`: what the entrance calls the field."""
        return f"{name} must be {self.rule}, got {_shown(value)}"

    def _accepts(self, value: Any) -> bool:
        spec = self.spec
        if not self._has_kind(value):
            return False
        if spec.max_chars is not None and len(value) > spec.max_chars:
            return False
        if self.kind in (int, float) and not (
            (spec.least is None or value >= spec.least)
            and (spec.most is None or value <= spec.most)
            and (spec.above is None or value > spec.above)
        ):
            return False
        return spec.accepts is None or spec.accepts(value)

    def _has_kind(self, value: object) -> bool:
        if self.choices:
            return type(value) in {type(one) for one in self.choices} and value in self.choices
        if self.kind is bool:
            return isinstance(value, bool)
        if self.kind in (int, float):  # also numpy's
            return isinstance(value, Integral if self.kind is int else Real) and not isinstance(value, bool)
        return isinstance(value, get_origin(self.kind) or self.kind)


def _shown(value: object) -> str:
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS:  # `repr` of megabytes would hold the event loop
        return f"{len(value)} characters"
    if value is None or isinstance(value, bool | str | Real):
        shown = repr(value)
        return shown if len(shown) <= _MAX_SHOWN_CHARS else f"{shown[:_MAX_SHOWN_CHARS]}..."
    return type(value).__name__


@lru_cache
def declared_fields(cls: type[Any]) -> Mapping[str, RequestField]:
    """The fields of a dataclass that have a Spec, by name."""
    hints = get_type_hints(cls, localns={"Voice": object}, include_extras=True)  # numpy is not loaded for a type
    found = {}
    for field in fields(cls):
        hint = hints[field.name]
        spec = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Spec)), None)
        if spec is None:
            continue
        kinds = _alternatives(get_args(hint)[0] if get_origin(hint) is Annotated else hint)
        values = [kind for kind in kinds if kind is not NoneType]
        kind = values[0] if len(values) == 1 else object
        found[field.name] = RequestField(field.name, kind, field.default, NoneType in kinds, spec)
    return found


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
