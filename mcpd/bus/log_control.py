# SPDX-License-Identifier: LGPL-2.1-or-later
"""``org.freedesktop.LogControl1``, the interface behind ``systemctl service-log-level`` and ``service-log-target``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcpd.bus.codec import Variant
from mcpd.bus.names import LOG_CONTROL
from mcpd.errors import InvalidArgument, NotAuthorized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.caller import Call
    from mcpd.journal import LogSettings


@dataclass(slots=True)
class LogControl:
    """The object at :data:`~mcpd.bus.names.LOG_CONTROL_PATH`, readable by everyone."""

    settings: LogSettings
    own_uid: int = field(default_factory=os.getuid)
    interface: str = LOG_CONTROL

    def properties(self) -> Mapping[str, Variant]:
        """Return all properties of the interface."""
        return {
            "LogLevel": Variant("s", self.settings.level),
            "LogTarget": Variant("s", self.settings.target),
            "SyslogIdentifier": Variant("s", self.settings.identifier),
        }

    def set_property(self, call: Call, name: str, value: object) -> None:
        """Set ``LogLevel`` or ``LogTarget``.

        Raises :class:`~mcpd.errors.NotAuthorized` for callers other than root and the user of this process, and
        :class:`~mcpd.errors.InvalidArgument` for an unknown *value*.
        """
        if call.uid not in (0, self.own_uid):
            raise NotAuthorized(f"only root and uid {self.own_uid} may set {LOG_CONTROL}.{name}")
        if not isinstance(value, str):
            raise InvalidArgument(f"{LOG_CONTROL}.{name} must be a string")
        if name == "LogLevel":
            self.settings.level = value
        else:
            self.settings.target = value
