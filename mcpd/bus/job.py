# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Job, for the jobs of :mod:`mcpd.install`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus import arguments
from mcpd.bus.arguments import option
from mcpd.bus.codec import Variant
from mcpd.bus.dispatcher import Row
from mcpd.bus.names import JOB
from mcpd.bus.server import to_variants
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
"""Attributes of a job that change, and the properties that show them."""
URGENT: Final = frozenset({"server_id", "state", "needs", "cancellable"})


@dataclass(slots=True)
class JobObject:
    """A job on the bus."""

    job: Job
    interface: str = JOB

    def properties(self) -> Mapping[str, Variant]:
        """Return all properties of the interface."""
        job = self.job
        _, error, error_text = self.result()
        message, _, detail = error_text.partition("\n")
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
            "Plan": Variant("aa{sv}", [to_variants(item.to_dict()) for item in job.plan]),
            "Needs": Variant("aa{sv}", [to_variants(need.to_dict()) for need in job.needs]),
            "Error": Variant("s", error),
            "Message": Variant("s", message),
            "Detail": Variant("s", detail),
        }

    def result(self) -> tuple[str, str, str]:
        """Return result, error name and message of the job, the arguments of ``Finished`` and ``JobRemoved``."""
        error: McpdError | None = self.job.error
        return (str(self.job.state), error.dbus_name if error else "", text(error.message) if error else "")

    def cancel(self, _call: Call, _options: Mapping[str, Any]) -> None:
        """Implement ``Cancel``."""
        self.job.cancel()

    def proceed(self, call: Call, options: Mapping[str, Any]) -> None:
        """Implement ``Proceed``."""
        if self.job.question != call.memo["question"]:
            raise self._outdated()
        self._check_server(call, options)
        self.job.proceed()

    def set_config(self, call: Call, changes: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Implement ``SetConfig``."""
        self._check_server(call, options)
        self.job.set_config(arguments.config_values(changes))

    async def set_secret(self, call: Call, key: str, value: int, options: Mapping[str, Any]) -> None:
        """Implement ``SetSecret``."""
        secret = await arguments.read_secret(call, value, key) or ""
        self._check_server(call, options)
        self.job.set_secret(key, secret)

    def _check_server(self, call: Call, options: Mapping[str, Any]) -> None:
        """Raise :class:`~mcpd.errors.InvalidArgument` if the job has moved on to another server."""
        authorized = call.memo["server"]
        if self.job.server_id != authorized or option(options, "server-id", str, authorized) != authorized:
            raise self._outdated()

    def _outdated(self) -> InvalidArgument:
        now = f"is now working on {self.job.server_id} and " if self.job.server_id else ""
        return InvalidArgument(
            f"job {self.job.number} {now}no longer waits for this answer; read its ServerId and Needs again"
        )


def _foreign_action(target: JobObject, call: Call, *_args: object) -> str | None:
    return None if target.job.owner_uid == call.uid else "cancel-foreign"


def _answer_action(target: JobObject, call: Call, *args: object) -> str | None:
    call.memo["server"] = target.job.server_id
    return _foreign_action(target, call, *args)


def _proceed_action(target: JobObject, call: Call, *args: object) -> str | None:
    call.memo["question"] = target.job.question
    agrees = target.job.state is JobState.NEEDS_CONSENT
    return _answer_action(target, call, *args) or ("install-trusted" if agrees and _is_update(target) else None)


def _config_action(target: JobObject, call: Call, *args: object) -> str | None:
    return _answer_action(target, call, *args) or ("configure" if _is_update(target) else None)


def _secret_action(target: JobObject, call: Call, *args: object) -> str | None:
    return _answer_action(target, call, *args) or ("set-secret" if _is_update(target) else None)


def _is_update(target: JobObject) -> bool:
    """Return whether the job updates. ``Update`` needs less authorization than ``Install``: answers need the rest."""
    return target.job.kind is JobKind.UPDATE


def _details(target: JobObject, _call: Call, *_args: object) -> dict[str, str]:
    return {
        "id": target.job.server_id,
        "job": str(target.job.number),
        "kind": str(target.job.kind),
        "owner-uid": str(target.job.owner_uid),
    }


# An answer lets a waiting job change the installation, which must not happen if mcpd became read-only meanwhile.
METHODS: Final = {
    (JOB, "Cancel"): Row(JobObject.cancel, _foreign_action, _details, changes=False),
    (JOB, "Proceed"): Row(JobObject.proceed, _proceed_action, _details, changes=True),
    (JOB, "SetConfig"): Row(JobObject.set_config, _config_action, _details, changes=True),
    (JOB, "SetSecret"): Row(JobObject.set_secret, _secret_action, _details, changes=True),
}
