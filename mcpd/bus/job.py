# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Job, for the jobs of :mod:`mcpd.install`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.bus import arguments
from mcpd.bus.arguments import option
from mcpd.bus.codec import Variant
from mcpd.bus.contract import Authorization, authorized_method
from mcpd.bus.names import JOB
from mcpd.bus.records import to_variants
from mcpd.catalog.listing import text
from mcpd.errors import InvalidArgument
from mcpd.install.job import JobKind, JobState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.arguments import Options
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


class _Question(NamedTuple):
    """The question of a job at the time when an answer to it is authorized."""

    server_id: str
    number: int


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

    def _authorization(self, call: Call, *, for_update: str | None = None) -> Authorization[_Question]:
        """Return the authorization to decide about the job; *for_update* is the action for a caller's own update.

        ``Update`` needs less authorization than ``Install``, so answers need the remaining authorization.
        """
        job = self.job
        is_own, is_update = job.owner_uid == call.uid, job.kind is JobKind.UPDATE
        action = "cancel-foreign" if not is_own else for_update if is_update else None
        details = {"id": job.server_id, "job": job.number, "kind": job.kind, "owner-uid": job.owner_uid}
        return Authorization(action, details, _Question(job.server_id, job.question))

    def _authorize_cancel(self, call: Call, options: Options) -> Authorization[_Question]:
        return self._authorization(call)

    @authorized_method(_authorize_cancel, changes=False)
    def cancel(self, call: Call, question: _Question, options: Options) -> None:
        """Implement ``Cancel``."""
        self.job.cancel()

    # An answer lets a waiting job change the installation, which must not happen if mcpd has become read-only by then.

    def _authorize_proceed(self, call: Call, options: Options) -> Authorization[_Question]:
        agrees = self.job.state is JobState.NEEDS_CONSENT
        return self._authorization(call, for_update="install-trusted" if agrees else None)

    @authorized_method(_authorize_proceed)
    def proceed(self, call: Call, question: _Question, options: Options) -> None:
        """Implement ``Proceed``."""
        if self.job.question != question.number:
            raise self._outdated()
        self._check_server(question, options)
        self.job.proceed()

    def _authorize_set_config(self, call: Call, changes: Options, options: Options) -> Authorization[_Question]:
        return self._authorization(call, for_update="configure")

    @authorized_method(_authorize_set_config)
    def set_config(self, call: Call, question: _Question, changes: Options, options: Options) -> None:
        """Implement ``SetConfig``."""
        self._check_server(question, options)
        self.job.set_config(arguments.config_values(changes))

    def _authorize_set_secret(self, call: Call, key: str, value: int, options: Options) -> Authorization[_Question]:
        return self._authorization(call, for_update="set-secret")

    @authorized_method(_authorize_set_secret)
    async def set_secret(self, call: Call, question: _Question, key: str, value: int, options: Options) -> None:
        """Implement ``SetSecret``."""
        secret = await arguments.read_secret(call, value, key) or ""
        self._check_server(question, options)
        self.job.set_secret(key, secret)

    def _check_server(self, question: _Question, options: Options) -> None:
        """Raise :class:`~mcpd.errors.InvalidArgument` if the job has moved on to another server."""
        authorized = question.server_id
        if self.job.server_id != authorized or option(options, "server-id", str, authorized) != authorized:
            raise self._outdated()

    def _outdated(self) -> InvalidArgument:
        now = f"is now working on {self.job.server_id} and " if self.job.server_id else ""
        return InvalidArgument(
            f"job {self.job.number} {now}no longer waits for this answer; read its ServerId and Needs again"
        )
