# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tells dates and times, converts them between time zones, and calculates with them.

Times are written as ISO 8601 has them (2026-11-22T14:05:00+01:00, 2026-11-22T13:05Z, 2026-11-22). One that does not say
its offset from UTC is in the zone that is given with it. Zones are those of the IANA database (Europe/Vienna); without
one it is the zone of this machine.
"""

from __future__ import annotations

import calendar
import os
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MOST_CHARACTERS = 1000


class Difference(TypedDict):
    """How far one time is from another; all numbers have the sign of ``seconds``."""

    seconds: float
    days: int
    hours: int
    minutes: int
    text: str


def now(timezone: str = "", pattern: str = "") -> str:
    """Tell the present date and time.

    Args:
        timezone: A zone such as Europe/Vienna or UTC; this machine's without one.
        pattern: How to write it, as for strftime ("%A, %d %B %Y"); ISO 8601 without one.
    """
    return _written(datetime.now(_zone(timezone)).replace(microsecond=0), pattern)


def convert(time: str, to: str, timezone: str = "") -> str:
    """Tell what time it is in another zone.

    Args:
        time: A time in ISO 8601.
        to: The zone to convert it to.
        timezone: The zone of a time that does not say its offset.
    """
    return _read(time, timezone).astimezone(_zone(to)).isoformat()


def add(
    time: str,
    years: int = 0,
    months: int = 0,
    weeks: int = 0,
    days: int = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    timezone: str = "",
) -> str:
    """Add to a time, or take away with negative numbers.

    Years, months, weeks and days keep the time of day, also where the clocks change, and the end of a shorter month is
    its last day. Hours, minutes and seconds are what a stop watch would measure.

    Args:
        time: A time in ISO 8601.
        years: Years to add.
        months: Months to add.
        weeks: Weeks to add.
        days: Days to add.
        hours: Hours to add.
        minutes: Minutes to add.
        seconds: Seconds to add.
        timezone: The zone to calculate in.
    """
    start = _read(time, timezone)
    if timezone:
        start = start.astimezone(_zone(timezone))
    try:
        year, month = divmod(start.year * 12 + start.month - 1 + years * 12 + months, 12)
        day = min(start.day, calendar.monthrange(year, month + 1)[1])
        moved = start.replace(year=year, month=month + 1, day=day) + timedelta(weeks=weeks, days=days)
        elapsed = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return (moved.astimezone(UTC) + elapsed).astimezone(start.tzinfo).isoformat()
    except (OverflowError, ValueError) as error:
        raise ValueError(f"what is added to {time} leads out of the years 1 to 9999") from error


def diff(start: str, end: str, timezone: str = "") -> Difference:
    """Tell how long it is from one time to another.

    Args:
        start: A time in ISO 8601.
        end: Another; if it is earlier, the difference is negative.
        timezone: The zone of those that do not say their offset.
    """
    total = (_read(end, timezone).astimezone(UTC) - _read(start, timezone).astimezone(UTC)).total_seconds()
    minutes, seconds = divmod(abs(total), 60)
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    sign = -1 if total < 0 else 1
    counted = ((days, "day"), (hours, "hour"), (minutes, "minute"), (round(seconds, 6), "second"))
    parts = [f"{number:.15g} {unit}{'' if number == 1 else 's'}" for number, unit in counted if number]
    text = ("-" if total < 0 else "") + (", ".join(parts) or "0 seconds")
    return Difference(seconds=total, days=sign * days, hours=sign * hours, minutes=sign * minutes, text=text)


def format(time: str, pattern: str, timezone: str = "") -> str:
    """Write a time in another way.

    Args:
        time: A time in ISO 8601.
        pattern: How to write it, as for strftime: "%A, %d %B %Y", "%H:%M", "%G-W%V" …
        timezone: The zone to write it in.
    """
    read = _read(time, timezone)
    return _written(read.astimezone(_zone(timezone)) if timezone else read, pattern)


def _read(time: str, timezone: str) -> datetime:
    try:
        read = datetime.fromisoformat(time.strip())
    except ValueError as error:
        raise ValueError(f"{time[:100]!r} is no time; write it as 2026-11-22T14:05:00+01:00 or 2026-11-22") from error
    return read if read.tzinfo else read.replace(tzinfo=_zone(timezone))


def _zone(name: str) -> tzinfo:
    name = name or os.environ.get("TZ", "").removeprefix(":")
    if name:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"{name[:100]!r} is no time zone; one is Europe/Vienna, another is UTC") from error
    try:
        with Path("/etc/localtime").open("rb") as file:
            return ZoneInfo.from_file(file)
    except FileNotFoundError:
        return UTC


def _written(time: datetime, pattern: str) -> str:
    if len(pattern) > MOST_CHARACTERS:
        raise ValueError(f"pattern: {len(pattern)} characters are more than {MOST_CHARACTERS}")
    return time.strftime(pattern) if pattern else time.isoformat()
