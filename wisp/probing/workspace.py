"""The directories that one trial of one row gets: fresh, known in every byte, and named by the row's variables."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from wisp.probing.abilities import python
from wisp.probing.leftovers import MARK
from wisp.realpath import real

__all__ = ["Workspace", "build_workspace"]

#: The time that `$OUTSIDE/victim` says it was changed: any change of it shows, whatever the clock's resolution.
_LONG_AGO: Final = 1_000_000_000
_WORD: Final = re.compile(r"\$(?:\{([A-Z][A-Z0-9_]*)\}|([A-Z][A-Z0-9_]*))")


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where one trial acts. All paths are real paths; `variables` are what the row's command can name.

    `root` and `root2` are the roots of the confinement; `outside`, `protected`, the link and a sibling of `root` whose
    name starts with its name lie outside both. `mark` is what processes of this trial carry (see `leftovers`).
    """

    directory: Path
    root: str
    root2: str
    outside: str
    protected: str
    link: str
    mark: str
    variables: Mapping[str, str]

    def with_variables(self, more: Mapping[str, str]) -> Workspace:
        """Return this workspace with the values of `more` put in."""
        return replace(self, variables={**self.variables, **more})

    def expand(self, text: str) -> str:
        """Return `text` with the row's variables put in; one that is not the row's stays as it is written."""
        return _WORD.sub(lambda found: self.variables.get(found[1] or found[2], found[0]), text)

    def shorten(self, text: str) -> str:
        """Return `text` with scratch paths written as the row's variables: short, and the same in every run."""
        for name in ("PROTECTED", "ROOT2", "ROOT", "OUTSIDE", "LINK"):
            value = re.escape(self.variables[name])
            text = re.sub(value + r"(?![A-Za-z0-9_])", f"${name}", text)
            text = re.sub(value, f"${{{name}}}", text)
        return text.replace(str(self.directory), "$SCRATCH")

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the command, without anything of the person's but the search path.

        `HOME` and `TMPDIR` are the second root: a tool that keeps notes at home must not find the real one, in the
        control no more than in the confined run.
        """
        return {
            "PATH": os.environ.get("PATH") or os.defpath,
            "LC_ALL": "C",
            "TZ": "UTC",
            "HOME": self.root2,
            "TMPDIR": self.root2,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            **self.variables,
            MARK: self.mark,
        }


def build_workspace(
    scratch: Path, name: str, *, protected_inside: Literal["existing", "absent"] | None = None
) -> Workspace:
    """Make the directories of one trial under `scratch` as `name`, and return them. Raises OSError.

    The protected directory lies outside the roots or, with `protected_inside`, two directories deep in the first, and
    may be absent there. `PORT` and `VICTIM` are 0 until the stand-ins are there (`with_variables`).
    """
    directory = Path(real(scratch / name))
    root, root2, outside = (directory / one for one in ("root", "root2", "outside"))
    protected = directory / "protected" if protected_inside is None else root / "above" / "parent" / "protected"
    for one in (directory, root, root2, directory / "rootx", outside, outside / "dir"):
        one.mkdir(mode=0o700)
    if protected_inside != "absent":
        protected.mkdir(mode=0o700, parents=True)
        (protected / "config.json").write_text("{}\n")
    (outside / "dir" / "file").write_text("file\n")
    _make_victim(outside / "victim")
    link = directory / "link"
    with contextlib.suppress(OSError):  # a file system without links: the rows that need one are skipped
        link.symlink_to(root2)
    variables = {
        "ROOT": str(root),
        "ROOT2": str(root2),
        "OUTSIDE": str(outside),
        "PROTECTED": str(protected),
        "LINK": str(link),
        "PYTHON": python(),
        "PORT": "0",
        "VICTIM": "0",
    }
    return Workspace(
        directory=directory,
        root=str(root),
        root2=str(root2),
        outside=str(outside),
        protected=str(protected),
        link=str(link),
        mark=f"{scratch.name}/{name}",
        variables=variables,
    )


def _make_victim(path: Path) -> None:
    path.write_text("the victim, as the runner made it\n")
    path.chmod(0o644)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setxattr(path, "user.wisp-probe", b"set by the runner")
    os.utime(path, (_LONG_AGO, _LONG_AGO))
