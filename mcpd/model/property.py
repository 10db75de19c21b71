# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configurable properties: values that the user sets for a server."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from mcpd.model.base import NAME, Document, Flag, Text
from mcpd.model.legacy import modern_value_type

_ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Target(StrEnum):
    """Place in which a server finds the value of a property."""

    MANIFEST = "manifest"
    ENV = "env"
    ARG = "arg"
    HEADER = "header"


class ValueType(StrEnum):
    """Type of a property's value; a property without a type accepts any value."""

    STRING = "string"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    PATH = "path"
    LIST = "list"


class ConfigProperty(Document):
    """One configurable property."""

    key: Annotated[str, NAME]
    label: Text = ""
    description: Text = ""
    sensitive: Flag = False
    required: Flag = False
    default: JsonValue = None
    target: Target = Target.MANIFEST
    type: Annotated[
        Annotated[ValueType | str, Field(union_mode="left_to_right")] | None, BeforeValidator(modern_value_type)
    ] = None
    """An unknown type is kept, and its values are not checked."""

    @model_validator(mode="after")
    def _env_name(self) -> Self:
        if self.target is Target.ENV and not _ENVIRONMENT_NAME.fullmatch(self.key):
            raise ValueError(f"{self.key!r} cannot be the name of an environment variable")
        return self
