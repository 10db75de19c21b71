# SPDX-License-Identifier: LGPL-2.1-or-later
"""A python-dbusmock template of polkitd that answers per subject, challenges, and can be cancelled."""

from dbusmock import MOCK_IFACE

import dbus

BUS_NAME = "org.freedesktop.PolicyKit1"
MAIN_OBJ = "/org/freedesktop/PolicyKit1/Authority"
MAIN_IFACE = "org.freedesktop.PolicyKit1.Authority"
SYSTEM_BUS = True
ANSWERS = {
    "yes": (True, False, {}),
    "no": (False, False, {}),
    "challenge": (False, True, {"polkit.retains_authorization_after_challenge": "1"}),
    "dismissed": (False, False, {"polkit.dismissed": "true"}),
}


def load(mock, _parameters):
    mock.answers = {}
    mock.waiting = {}


@dbus.service.method(
    MAIN_IFACE, in_signature="(sa{sv})sa{ss}us", out_signature="(bba{ss})", async_callbacks=("ok_cb", "err_cb")
)
def CheckAuthorization(self, subject, action_id, _details, flags, cancellation_id, ok_cb, err_cb):
    kind, fields = subject
    assert kind == "system-bus-name"
    answer = self.answers.get((str(fields["name"]), str(action_id))) or self.answers.get(("", str(action_id)), "no")
    if answer == "hang" or (answer == "prompt" and flags):
        self.waiting[str(cancellation_id)] = (ok_cb, err_cb)
        self.EmitSignal(MAIN_IFACE, "Changed", "", [])
    elif answer == "prompt" or (answer == "wrong password" and not flags):
        ok_cb(ANSWERS["challenge"])
    elif answer == "overloaded":
        err_cb(dbus.exceptions.DBusException("too many", name="org.freedesktop.DBus.Error.LimitsExceeded"))
    else:
        ok_cb(ANSWERS["no" if answer == "wrong password" else answer])


@dbus.service.method(MAIN_IFACE, in_signature="s")
def CancelCheckAuthorization(self, cancellation_id):
    self.waiting.pop(str(cancellation_id))[1](
        dbus.exceptions.DBusException("cancelled", name="org.freedesktop.PolicyKit1.Error.Cancelled")
    )
    self.EmitSignal(MAIN_IFACE, "Changed", "", [])


@dbus.service.method(MOCK_IFACE, in_signature="sss")
def Answer(self, subject, action_id, answer):
    """How CheckAuthorization answers for *action_id* and *subject* (empty: everybody).

    "hang" is no answer; "prompt" is none once the user may be asked.
    """
    self.answers[(str(subject), str(action_id))] = str(answer)


@dbus.service.method(MOCK_IFACE, out_signature="u")
def Waiting(self):
    """How many checks are not answered."""
    return len(self.waiting)


@dbus.service.method(MOCK_IFACE)
def Release(self):
    """Answer the check that waits longest: yes."""
    self.waiting.pop(next(iter(self.waiting)))[0](ANSWERS["yes"])
    self.EmitSignal(MAIN_IFACE, "Changed", "", [])
