"""Which variables a command is given. Names decide: a value is never looked at.

wisp's own keys stay with wisp, in every mode: a command may read what it is given, and send it anywhere while the
network is on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from wisp.errors import ConfigError

__all__ = ["ALLOWED", "OWN_KEYS", "OWN_KEY_ENDINGS", "PassedOn", "is_own_key", "without_wisp_keys"]

#: Variables that wisp itself reads a key from, and what for. A command never inherits them.
OWN_KEYS: Final = {
    "WISP_API_KEY": "the key of the service that a model is reached by",
    "WISP_MODEL_KEY": "the key of one model, where it has one of its own",
    "OPENAI_API_KEY": "the client library of the extra `chat` takes its key from it",
}

#: A variable of wisp's own with such an ending holds a key too, whatever later versions call it.
OWN_KEY_ENDINGS: Final = ("KEY", "TOKEN", "SECRET")

#: What `"environment": "allow-list"` passes on; a `*` at the end stands for any ending. Who and where one is, how to
#: print, where programs keep their files. Nothing that may hold a key, and nothing that leads to a daemon.
ALLOWED: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TERM",
    "TERMINFO",
    "COLORTERM",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "CI",
    "XDG_CACHE_HOME",  # one of the default roots: without it a command would write beside it
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "__CF_USER_TEXT_ENCODING",  # macOS asks its directory service for it where it is not set
)

_WISP: Final = b"WISP_"
_ENDINGS: Final = tuple(ending.encode() for ending in OWN_KEY_ENDINGS)
_OWN: Final = tuple(name.encode() for name in OWN_KEYS)


def is_own_key(name: str) -> bool:
    """Return whether a variable called `name` holds one of wisp's own keys."""
    return name in OWN_KEYS or (name.startswith("WISP_") and name.endswith(OWN_KEY_ENDINGS))


def without_wisp_keys(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return `environment` without the keys that are wisp's by their name: what a caller's own choice is left with.

    A key that other programs use as well, OPENAI_API_KEY, is kept: whoever names it means it.
    """
    kept = dict(environment)
    for name in [name for name in kept if name.startswith(_WISP)]:
        if name.endswith(_ENDINGS):
            del kept[name]
    return kept


@dataclass(frozen=True, slots=True)
class PassedOn:
    """What a command inherits: all but wisp's own keys or, where `names` is not None, no more than it is told.

    `names` are whole names, `beginnings` those that end in a `*`.
    """

    names: frozenset[bytes] | None = None
    beginnings: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, mode: Literal["all", "allow-list"], allow: Sequence[str] = ()) -> PassedOn:
        """Return what the settings `sandbox.environment` and `environmentAllow` ask for.

        Raises ConfigError for one of wisp's own keys in `allow`: it would not be passed on.
        """
        for index, name in enumerate(allow):
            if is_own_key(name):
                reason = f"{name} holds a key of wisp's own, which no command is given"
                raise ConfigError("the settings", 0, f"sandbox.environmentAllow[{index}]", reason)
        if mode == "all":
            return cls()
        wanted = [os.fsencode(name) for name in (*ALLOWED, *allow)]
        return cls(
            frozenset(name for name in wanted if not name.endswith(b"*")),
            tuple(name[:-1] for name in wanted if name.endswith(b"*")),
        )

    def inherited(self, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return what of `environment` a command is given."""
        kept = without_wisp_keys(environment)
        for own in _OWN:
            kept.pop(own, None)
        if self.names is None:
            return kept
        return {name: value for name, value in kept.items() if name in self.names or name.startswith(self.beginnings)}
