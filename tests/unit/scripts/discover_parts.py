# SPDX-License-Identifier: LGPL-2.1-or-later
"""The schema of a function in a file, for tests of discovery."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from mcpd.servers.scripts.discover import python

HEAD = """
from __future__ import annotations
import collections, datetime, decimal, enum, ipaddress, pathlib, typing, uuid
import annotated_types as at
import typing as t
from collections import abc
from dataclasses import dataclass, field, KW_ONLY, InitVar
from typing import *
from uuid import UUID as U
import pydantic
from pydantic import BaseModel, ConfigDict, Field, RootModel, conint, conlist
"""


def schema(source: str, function: str = "f") -> dict[str, Any]:
    found = {tool.name: tool for tool in python.read(HEAD + source, "x.py")[0]}[function].input_schema
    Draft202012Validator.check_schema(found)
    json.dumps(found).encode()
    return found


def accepts(found: dict[str, Any], value: object) -> bool:
    """Whether the schema *found* takes *value*."""
    return Draft202012Validator(found).is_valid(value)


def of(annotation: str, before: str = "") -> dict[str, Any]:
    """The schema of a parameter with *annotation*, in a file that begins with *before*."""
    found = schema(f"{before}\ndef f(x: {annotation}): ...")
    assert found["required"] == ["x"]
    definitions = {"$defs": found["$defs"]} if "$defs" in found else {}
    return {**found["properties"]["x"], **definitions}
