# SPDX-License-Identifier: LGPL-2.1-or-later
"""``org.freedesktop.LogControl1``: what ``systemctl service-log-level`` and ``service-log-target`` change."""

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
    from mcpd.journal import LevelSwitch


@dataclass(slots=True)
class LogControl:
    """The object at :data:`~mcpd.bus.names.LOG_CONTROL_PATH`. Everybody may read it."""

    switch: LevelSwitch
    own_uid: int = field(default_factory=os.getuid)
    interface: str = LOG_CONTROL

    def properties(self) -> Mapping[str, Variant]:
        """Every property of the interface."""
        return {
            "LogLevel": Variant("s", self.switch.level),
            "LogTarget": Variant("s", self.switch.target),
            "SyslogIdentifier": Variant("s", self.switch.identifier),
        }

    def set_property(self, call: Call, name: str, value: object) -> None:
        """Set ``LogLevel`` or ``LogTarget``.

        Raises :class:`~mcpd.errors.NotAuthorized` for anybody but root and the user that this process runs as, and
        :class:`~mcpd.errors.InvalidArgument` for a *value* that there is not.
        """
        if call.uid not in (0, self.own_uid):
            raise NotAuthorized(f"only root and uid {self.own_uid} set {LOG_CONTROL}.{name}")
        if not isinstance(value, str):
            raise InvalidArgument(f"{LOG_CONTROL}.{name} is a string")
        if name == "LogLevel":
            self.switch.level = value
        else:
            self.switch.target = value
