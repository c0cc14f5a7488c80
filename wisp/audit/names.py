"""The files of the log: `audit.jsonl` is written to, `audit.1.jsonl` is the youngest of those rotated away."""

from __future__ import annotations

import os
import re
from typing import Final

__all__ = ["current_path", "rotated_numbers", "rotated_path"]

_ROTATED: Final = re.compile(r"audit\.([1-9][0-9]{0,8})\.jsonl")


def current_path(directory: str) -> str:
    """Return the path of the file that is written to."""
    return f"{directory}/audit.jsonl"


def rotated_path(directory: str, number: int) -> str:
    """Return the path of the file that was rotated away `number` rotations ago."""
    return f"{directory}/audit.{number}.jsonl"


def rotated_numbers(directory: str) -> list[int]:
    """Return the numbers of the rotated files that exist, youngest first. Raises OSError."""
    found = (_ROTATED.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in found if match is not None)
