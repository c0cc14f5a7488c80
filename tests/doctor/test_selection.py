"""Which rows run for what a person asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wisp.doctor.selection import families, select_rows
from wisp.errors import UsageError
from wisp.probing.probe import Probe


@pytest.fixture
def rows(made: Any) -> tuple[Probe, ...]:
    plain: Probe = made.row("held", name="write.plain").probe
    return (
        plain,
        replace(plain, id="write.slow", slow=True),
        replace(plain, id="net.open", promise=False),
        replace(plain, id="work.git", expect="allowed", layer=()),
    )


def _ids(rows: tuple[Probe, ...]) -> list[str]:
    return [row.id for row in rows]


def test_unasked_the_rows_that_are_promised_and_not_slow_run(rows: tuple[Probe, ...]) -> None:
    chosen, selection = select_rows(rows)

    assert (_ids(chosen), selection) == (["write.plain", "work.git"], "default")


def test_all_means_every_row(rows: tuple[Probe, ...]) -> None:
    assert select_rows(rows, everything=True) == (rows, "all")


def test_a_row_named_by_its_id_runs_also_when_it_is_slow_or_not_promised(rows: tuple[Probe, ...]) -> None:
    chosen, selection = select_rows(rows, ids=["net.open", "write.slow"])

    assert (_ids(chosen), selection) == (["write.slow", "net.open"], "named")


def test_of_a_family_those_run_that_run_unasked_or_all(rows: tuple[Probe, ...]) -> None:
    assert _ids(select_rows(rows, named_families=["write"])[0]) == ["write.plain"]
    assert _ids(select_rows(rows, named_families=["write"], everything=True)[0]) == ["write.plain", "write.slow"]


def test_an_id_and_a_family_are_joined(rows: tuple[Probe, ...]) -> None:
    chosen, selection = select_rows(rows, ids=["net.open"], named_families=["work"])

    assert (_ids(chosen), selection) == (["net.open", "work.git"], "named")


def test_families_come_in_the_order_of_their_first_row(rows: tuple[Probe, ...]) -> None:
    assert families(rows) == ("write", "net", "work")


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("write.plane", "write.plain"), ("git", "work.git"), ("work.gti", "work.git")],
)
def test_an_unknown_id_is_an_error_that_names_the_nearest(rows: tuple[Probe, ...], wrong: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=rf"no probe '{wrong}'; did you mean {nearest}\?"):
        select_rows(rows, ids=[wrong])


def test_an_id_that_is_near_to_none_is_told_where_they_are_listed(rows: tuple[Probe, ...]) -> None:
    with pytest.raises(UsageError, match="wisp doctor --list"):
        select_rows(rows, ids=["zzzzzzzzz"])


def test_an_unknown_family_is_an_error_that_names_the_nearest(rows: tuple[Probe, ...]) -> None:
    with pytest.raises(UsageError, match=r"no family of probes 'wriet'; did you mean write\?"):
        select_rows(rows, named_families=["wriet"])


def test_a_family_of_which_no_row_runs_unasked_asks_for_all(rows: tuple[Probe, ...]) -> None:
    with pytest.raises(UsageError, match="net are all slow or not promised; add --all"):
        select_rows(rows, named_families=["net"])
