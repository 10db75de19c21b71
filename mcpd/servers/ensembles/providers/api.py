# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the APIs of models have in common: options, answers whose parts may be of any type, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from mcpd.errors import InvalidConfig, McpdError
from mcpd.model import printable
from mcpd.model.base import first_fault
from mcpd.servers.ensembles.providers.http import fault, words

if TYPE_CHECKING:
    from mcpd.servers.ensembles.format.models import Profile
    from mcpd.servers.ensembles.providers.http import Call

DEFAULT_MAX_TOKENS: Final = 4096
"""Where an API wants a number and the profile has none; the smallest limit among the models in use."""
JSON_ONLY: Final = "Answer with JSON only: no words before or after it, no code fence."
_OURS: Final = frozenset({
    "model", "messages", "contents", "system", "system_instruction", "systemInstruction", "stream", "key", "api_key",
    "apiKey", "authorization", "headers", "base_url",
})  # fmt: skip
"""What no option may set."""
_MOST_TOKENS: Final = 1 << 53


def _text(value: Any) -> Any:
    """Half a surrogate pair cannot be written to any file."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else 0


def _name(value: Any) -> str:
    return printable(value) if isinstance(value, str) else ""


def _object(value: Any) -> Any:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Any:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else value


Text = Annotated[str, BeforeValidator(_text)]
Count = Annotated[int, BeforeValidator(_count)]
"""0 for what is no number of tokens."""
Name = Annotated[str, BeforeValidator(_name)]
"""A word for messages and listings; empty for what is no text."""
LAX_OBJECT: Final = BeforeValidator(_object)
"""An object without members for what is none."""
LAX_OBJECTS: Final = BeforeValidator(_objects)
"""A list without what is no object."""


class Answer(BaseModel):
    """An object of an answer, of which the rest does not matter."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


A = TypeVar("A", bound=Answer)


def parsed(kind: type[A], answer: Any, call: Call) -> A:
    """*answer* as a *kind*. Raises :class:`~mcpd.errors.McpdError` that says what is wrong with it."""
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        raise unusable(call, f"{words(first_fault(error))}{_error_in(answer)}") from error


def unusable(call: Call, why: str) -> McpdError:
    """The fault of an answer that is none."""
    return fault(McpdError(f"{call.url} answers something else than a completion ({why}); check provider and base_url"))


def refused(call: Call, reason: str, said: str = "") -> McpdError:
    """The fault of a model that does not answer, for *reason*, a word of its API."""
    more = f": {words(said)}" if said else ""
    return fault(McpdError(f"the model at {call.url} gives no answer ({words(reason)}){more}"), reason=words(reason))


def _error_in(answer: Any) -> str:
    """What an error with a status of success says."""
    error = answer.get("error") if isinstance(answer, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return f": {words(said)}" if isinstance(said, str) else ""


def options(profile: Profile) -> dict[str, Any]:
    """The profile's own options. Raises :class:`~mcpd.errors.InvalidConfig` for those that are not its to set."""
    given = dict(profile.options or {})
    if wrong := sorted(given.keys() & _OURS):
        raise InvalidConfig(f"options of a model must not set {', '.join(wrong)}; the profile has keys for what it may")
    return given


def with_json(system: str | None) -> str:
    """*system*, and that the answer is to be JSON."""
    return f"{system}\n\n{JSON_ONLY}" if system else JSON_ONLY
