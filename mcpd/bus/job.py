# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Job over the jobs of :mod:`mcpd.install`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus import arguments
from mcpd.bus.arguments import option
from mcpd.bus.codec import Variant
from mcpd.bus.dispatcher import Row
from mcpd.bus.names import JOB
from mcpd.bus.server import plain
from mcpd.catalog.listing import text
from mcpd.errors import InvalidArgument
from mcpd.install.job import JobKind, JobState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.caller import Call
    from mcpd.errors import McpdError
    from mcpd.install.job import Job

CHANGES: Final = {
    "server_id": ("ServerId",),
    "state": ("State", "Durations"),
    "progress": ("Progress",),
    "bytes_done": ("BytesDone",),
    "bytes_total": ("BytesTotal",),
    "cancellable": ("Cancellable",),
    "needs": ("Needs",),
    "plan": ("Plan",),
    "error": ("Error", "Message", "Detail"),
}
"""Attributes of a job that change, and the properties they are."""
URGENT: Final = frozenset({"server_id", "state", "needs", "cancellable"})


@dataclass(slots=True)
class JobObject:
    """A job on the bus."""

    job: Job
    interface: str = JOB

    def properties(self) -> Mapping[str, Variant]:
        """Every property of the interface."""
        job = self.job
        _, error, said = self.result()
        message, _, detail = said.partition("\n")
        return {
            "Id": Variant("u", job.number),
            "Kind": Variant("s", str(job.kind)),
            "ServerId": Variant("s", job.server_id),
            "OwnerUid": Variant("u", job.owner_uid),
            "State": Variant("s", str(job.state)),
            "Durations": Variant("a{sd}", {str(state): seconds for state, seconds in job.durations.items()}),
            "Progress": Variant("u", job.progress),
            "BytesDone": Variant("t", job.bytes_done),
            "BytesTotal": Variant("t", job.bytes_total),
            "Cancellable": Variant("b", job.cancellable),
            "Plan": Variant("aa{sv}", [plain(item.to_dict()) for item in job.plan]),
            "Needs": Variant("aa{sv}", [plain(need.to_dict()) for need in job.needs]),
            "Error": Variant("s", error),
            "Message": Variant("s", message),
            "Detail": Variant("s", detail),
        }

    def result(self) -> tuple[str, str, str]:
        """How the job ended, as ``Finished`` and ``JobRemoved`` say it."""
        error: McpdError | None = self.job.error
        return (str(self.job.state), error.dbus_name if error else "", text(error.message) if error else "")

    def cancel(self, _call: Call, _options: Mapping[str, Any]) -> None:
        """``Cancel``."""
        self.job.cancel()

    def proceed(self, call: Call, options: Mapping[str, Any]) -> None:
        """``Proceed``."""
        if self.job.question != call.memo["question"]:
            raise self._not_that()
        self._check_server(call, options)
        self.job.proceed()

    def set_config(self, call: Call, changes: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """``SetConfig``."""
        self._check_server(call, options)
        self.job.set_config(arguments.values(changes))

    async def set_secret(self, call: Call, key: str, value: int, options: Mapping[str, Any]) -> None:
        """``SetSecret``."""
        secret = await arguments.secret(call, value, key) or ""
        self._check_server(call, options)
        self.job.set_secret(key, secret)

    def _check_server(self, call: Call, options: Mapping[str, Any]) -> None:
        """Raise :class:`~mcpd.errors.InvalidArgument` if another server is at work than when it was called."""
        then = call.memo["server"]
        if self.job.server_id != then or option(options, "server-id", str, then) != then:
            raise self._not_that()

    def _not_that(self) -> InvalidArgument:
        now = f"is at {self.job.server_id} and " if self.job.server_id else ""
        return InvalidArgument(
            f"job {self.job.number} {now}does not ask that any more; look at its ServerId and Needs again"
        )


def _foreign(target: JobObject, call: Call, *_args: object) -> str | None:
    return None if target.job.owner_uid == call.uid else "cancel-foreign"


def _answering(target: JobObject, call: Call, *args: object) -> str | None:
    call.memo["server"] = target.job.server_id
    return _foreign(target, call, *args)


def _proceeding(target: JobObject, call: Call, *args: object) -> str | None:
    call.memo["question"] = target.job.question
    agrees = target.job.state is JobState.NEEDS_CONSENT
    return _answering(target, call, *args) or ("install-trusted" if agrees and _is_update(target) else None)


def _configuring(target: JobObject, call: Call, *args: object) -> str | None:
    return _answering(target, call, *args) or ("configure" if _is_update(target) else None)


def _giving_secret(target: JobObject, call: Call, *args: object) -> str | None:
    return _answering(target, call, *args) or ("set-secret" if _is_update(target) else None)


def _is_update(target: JobObject) -> bool:
    """Whether less was asked for than what installs, so that what it is told on its way is asked for then."""
    return target.job.kind is JobKind.UPDATE


def _details(target: JobObject, _call: Call, *_args: object) -> dict[str, str]:
    return {
        "id": target.job.server_id,
        "job": str(target.job.number),
        "kind": str(target.job.kind),
        "owner-uid": str(target.job.owner_uid),
    }


# What lets a job that waits go on changes what it was begun to change: mcpd may have become read-only meanwhile.
METHODS: Final = {
    (JOB, "Cancel"): Row(JobObject.cancel, _foreign, _details, changes=False),
    (JOB, "Proceed"): Row(JobObject.proceed, _proceeding, _details, changes=True),
    (JOB, "SetConfig"): Row(JobObject.set_config, _configuring, _details, changes=True),
    (JOB, "SetSecret"): Row(JobObject.set_secret, _giving_secret, _details, changes=True),
}
