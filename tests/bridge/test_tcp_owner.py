# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which user listens at an address of this machine."""

from __future__ import annotations

import os
import socket

import pytest

from mcpd.bridge.http.tcp_owner import listening

NOBODY = 65533
"""A uid that is nobody here."""


def test_who_listens_is_told_by_the_address_that_a_connection_comes_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as four:
        port = four.getsockname()[1]
        assert listening("127.0.0.1", port) == {os.getuid()}
        assert listening("127.0.0.2", port) == listening("::1", port) == frozenset()
    assert listening("127.0.0.1", port) == frozenset()
    with socket.create_server(("", 0)) as every:
        assert listening("127.0.0.1", every.getsockname()[1]) == {os.getuid()}
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert listening(*bound.getsockname()) == frozenset()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        assert listening(*client.getsockname()) == frozenset()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_socket_of_ipv6_may_take_connections_of_ipv4() -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        port = both.getsockname()[1]
        assert listening("127.0.0.1", port) == listening("::1", port) == {os.getuid()}
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        port = six.getsockname()[1]
        assert not listening("127.0.0.1", port)
        assert listening("::1", port) == {os.getuid()}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_the_socket_of_one_address_goes_before_one_of_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as four:
        os.fchown(four.fileno(), NOBODY, -1)
        port = four.getsockname()[1]
        with socket.create_server(("::", port), family=socket.AF_INET6):
            assert listening("127.0.0.1", port) == {NOBODY}
            assert listening("::1", port) == {0}
