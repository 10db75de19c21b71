# SPDX-License-Identifier: LGPL-2.1-or-later
"""A person at a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import termios
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable


class Terminal:
    """A program on a terminal. Use it as a context manager."""

    def __init__(self, start: Callable[..., subprocess.Popen[bytes]]) -> None:
        self._fd, terminal = pty.openpty()
        self._mark = 0
        self.shown = ""
        """All that the program wrote so far."""
        try:
            streams: dict[str, Any] = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
            self.program = start(
                **streams, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            )
        except BaseException:
            os.close(self._fd)
            raise
        finally:
            os.close(terminal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._fd)

    def expect(self, text: str, timeout: float = 180) -> None:
        """Wait until *text* is shown that was not waited for before."""
        give_up = time.monotonic() + timeout
        seen = len(self.shown)
        while text not in self.shown[self._mark :]:
            left = give_up - time.monotonic()
            assert left > 0, f"{text!r} was never shown, but {self.shown!r}"
            ready, _, _ = select.select([self._fd], [], [], left)
            if ready and not self._read():
                assert text in self.shown[seen:], f"it ended without {text!r}, after {self.shown!r}"
                break
        self._mark = self.shown.index(text, self._mark) + len(text)

    def type(self, text: str) -> None:
        """Type *text* and the return key."""
        os.write(self._fd, text.encode() + b"\n")

    def type_until(self, text: str, answer: str) -> None:
        """Type *text* until *answer* is shown: another terminal in between may throw away what comes too early."""
        for _ in range(6):
            self.type_unseen(text)
            with contextlib.suppress(AssertionError):
                self.expect(answer, timeout=5)
                return
        raise AssertionError(f"{answer!r} was never shown, but {self.shown!r}")

    def type_unseen(self, text: str, timeout: float = 180) -> None:
        """Type *text* once the terminal does not show it any more: what came before is thrown away."""
        give_up = time.monotonic() + timeout
        while termios.tcgetattr(self._fd)[3] & termios.ECHO:
            assert time.monotonic() < give_up, f"it would show the password, after {self.shown!r}"
            time.sleep(0.01)
        self.type(text)

    def end(self, timeout: float = 180) -> int:
        """Read until the program ends, and return its exit code."""
        give_up = time.monotonic() + timeout
        while self.program.poll() is None:
            assert time.monotonic() < give_up, f"it does not end, after {self.shown!r}"
            ready, _, _ = select.select([self._fd], [], [], 0.1)
            if ready:
                self._read()
        while self._read():
            pass
        return int(self.program.returncode)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 4096)
        except OSError:  # what reading gives once nobody has the terminal open
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)
