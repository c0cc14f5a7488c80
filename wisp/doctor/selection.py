"""Which rows a person asked for, by id, by family, or the default set."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from wisp.doctor.report import Selection
from wisp.errors import UsageError
from wisp.probing.probe import Probe

__all__ = ["families", "is_default", "select_rows"]


def is_default(probe: Probe) -> bool:
    """Return whether a row runs unasked: it is promised and not slow."""
    return probe.promise and not probe.slow


def families(rows: Sequence[Probe]) -> tuple[str, ...]:
    """Return the families of `rows` in the order of their first row."""
    return tuple(dict.fromkeys(row.family for row in rows))


def select_rows(
    rows: Sequence[Probe], *, ids: Sequence[str] = (), named_families: Sequence[str] = (), everything: bool = False
) -> tuple[tuple[Probe, ...], Selection]:
    """Return the wanted rows in table order, and what kind of wish it was.

    A row named by its id is taken also when it is slow or not promised; of a family those that run unasked, or all
    of them with `everything`. Raises UsageError for an id or family that does not exist, naming the nearest, and for
    a family of which no row runs unasked.
    """
    _require_known("probe", ids, [row.id for row in rows], "`wisp doctor --list` names them all")
    known = families(rows)
    _require_known("family of probes", named_families, known, f"there are {', '.join(known)}")
    if not ids and not named_families:
        return tuple(row for row in rows if everything or is_default(row)), "all" if everything else "default"
    for family in named_families:
        if not everything and not any(row.family == family and is_default(row) for row in rows):
            raise UsageError(f"the probes of the family {family} are all slow or not promised; add --all to run them")
    wanted = tuple(
        row for row in rows if row.id in ids or (row.family in named_families and (everything or is_default(row)))
    )
    return wanted, "named" if ids else "family"


def _require_known(what: str, named: Sequence[str], known: Collection[str], otherwise: str) -> None:
    for name in named:
        if name not in known:
            same_end = [one for one in known if one.rpartition(".")[2] == name]
            near = same_end or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else otherwise
            raise UsageError(f"there is no {what} {name[:80]!r}; {hint}")
