# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of Python types and their schemas (JSON Schema 2020-12).

Names are full ones, but without the modules in :data:`FAMILY`, several of which have the same content.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

FAMILY: Final = ("typing.", "typing_extensions.", "collections.abc.", "builtins.")
"""Modules that are omitted from names."""

INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
STRING: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
NULL: Final[Schema] = {"type": "null"}
BYTES: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
OBJECT: Final[Schema] = {"type": "object"}


def words(names: str) -> frozenset[str]:
    """Return the set of the space-separated *names*."""
    return frozenset(names.split())


def _format(name: str) -> Schema:
    return {"type": "string", "format": name}


def _many(names: str, schema: Schema) -> dict[str, Schema]:
    return dict.fromkeys(words(names), schema)


PLAIN: Final[dict[str, Schema]] = {
    **_many("int numbers.Integral pydantic.StrictInt", INTEGER),
    **_many("float numbers.Number numbers.Real pydantic.StrictFloat pydantic.FiniteFloat", NUMBER),
    **_many("str Text LiteralString pydantic.StrictStr pydantic.SecretStr pydantic.NameEmail", STRING),
    **_many("bool pydantic.StrictBool", BOOLEAN),
    **_many("bytes bytearray pydantic.StrictBytes pydantic.SecretBytes", BYTES),
    **_many("None types.NoneType", NULL),
    "decimal.Decimal": _format("decimal"),
    "fractions.Fraction": {"type": "string", "pattern": r"^[-+]?[0-9]+(/0*[1-9][0-9]*|\.[0-9]+)?$"},
    **_many("pathlib.Path pathlib.PurePath pathlib.PosixPath pathlib.PurePosixPath os.PathLike", STRING),
    **_many("pydantic.FilePath pydantic.DirectoryPath pydantic.NewPath", STRING),
    "ipaddress.IPv4Network": _format("ipv4network"),  # the four names are pydantic's
    "ipaddress.IPv6Network": _format("ipv6network"),
    "ipaddress.IPv4Interface": _format("ipv4interface"),
    "ipaddress.IPv6Interface": _format("ipv6interface"),
    **_many("datetime.date pydantic.PastDate pydantic.FutureDate", _format("date")),
    **_many("datetime.datetime pydantic.AwareDatetime pydantic.NaiveDatetime", _format("date-time")),
    **_many("pydantic.PastDatetime pydantic.FutureDatetime", _format("date-time")),
    "datetime.time": _format("time"),
    "datetime.timedelta": {"type": "number", "description": "Seconds"},
    **_many("uuid.UUID pydantic.UUID1 pydantic.UUID3 pydantic.UUID4 pydantic.UUID5", _format("uuid")),
    **_many("pydantic.AnyUrl pydantic.AnyHttpUrl pydantic.HttpUrl pydantic.FileUrl", _format("uri")),
    "pydantic.EmailStr": _format("email"),
    "ipaddress.IPv4Address": _format("ipv4"),
    "ipaddress.IPv6Address": _format("ipv6"),
    **_many("re.Pattern Pattern", _format("regex")),
    "pydantic.PositiveInt": {"type": "integer", "exclusiveMinimum": 0},
    "pydantic.NegativeInt": {"type": "integer", "exclusiveMaximum": 0},
    "pydantic.NonNegativeInt": {"type": "integer", "minimum": 0},
    "pydantic.NonPositiveInt": {"type": "integer", "maximum": 0},
    "pydantic.PositiveFloat": {"type": "number", "exclusiveMinimum": 0},
    "pydantic.NegativeFloat": {"type": "number", "exclusiveMaximum": 0},
    "pydantic.NonNegativeFloat": {"type": "number", "minimum": 0},
    "pydantic.NonPositiveFloat": {"type": "number", "maximum": 0},
}
"""Types without parameters."""

SEQUENCES: Final = words(
    "list List Sequence MutableSequence Iterable Collection Container Iterator Reversible AsyncIterable AsyncIterator "
    "collections.deque Deque pydantic.conlist"
)
SETS: Final = words("set Set frozenset FrozenSet AbstractSet MutableSet pydantic.conset pydantic.confrozenset")
TUPLES: Final = words("tuple Tuple")
MAPPINGS: Final = words(
    "dict Dict Mapping MutableMapping collections.OrderedDict OrderedDict collections.defaultdict DefaultDict "
    "collections.ChainMap ChainMap"
)
COUNTERS: Final = words("collections.Counter Counter")

WRAPPERS: Final = words("Final Required NotRequired ReadOnly ClassVar Unpack dataclasses.InitVar")
"""Wrappers that qualify a name, not its type: ``Final[int]``."""

ENUMS: Final = words("enum.Enum enum.IntEnum enum.StrEnum enum.ReprEnum")
FLAGS: Final = words("enum.Flag enum.IntFlag")
DATACLASSES: Final = words("dataclasses.dataclass pydantic.dataclass")
MODELS: Final = words("pydantic.BaseModel pydantic.RootModel pydantic.BaseSettings")

KEYS: Final[dict[str, Schema]] = {
    "integer": {"pattern": "^[-+]?[0-9]+$"},
    "number": {"pattern": r"^[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"},
    "boolean": {"enum": ["true", "false"]},
}
"""Schemas of an object's member names if its keys are of another type than text."""

CONSTRAINED: Final[dict[str, Schema]] = {
    "pydantic.conint": INTEGER,
    "pydantic.confloat": NUMBER,
    "pydantic.constr": STRING,
    "pydantic.conbytes": BYTES,
    "pydantic.condecimal": PLAIN["decimal.Decimal"],
}
"""Functions of pydantic that make a type, and its base type."""

KNOWN: Final = frozenset().union(
    PLAIN,
    SEQUENCES,
    SETS,
    TUPLES,
    MAPPINGS,
    COUNTERS,
    WRAPPERS,
    ENUMS,
    FLAGS,
    DATACLASSES,
    MODELS,
    CONSTRAINED,
    words(
        "Any Optional Union Literal Annotated TypedDict NamedTuple NewType TypeVar TypeAliasType pydantic.Field "
        "pydantic.ConfigDict enum.auto dataclasses.field dataclasses.KW_ONLY"
    ),
)
"""All names in the tables, for ``from typing import *``."""


def canonical(full: str) -> str:
    """Return *full* in the form used in the tables."""
    for module in FAMILY:
        if full.startswith(module):
            return full.removeprefix(module)
    if full.startswith(("pydantic.", "pydantic_settings.")):
        return "pydantic." + full.rpartition(".")[2]
    return full


def container(name: str) -> Schema | None:
    """Return the schema of the container *name* without its items, or None if it is not a container.

    Every array has ``items``: the OpenAI API refuses one without.
    """
    if name in SEQUENCES or name in TUPLES:
        return {"type": "array", "items": {}}
    if name in SETS:
        return {"type": "array", "items": {}, "uniqueItems": True}
    if name in MAPPINGS:
        return {"type": "object"}
    if name in COUNTERS:
        return {"type": "object", "additionalProperties": {"type": "integer"}}
    return None
