"""Snapshots of lists that grow: the items that they had, without a copy."""

from __future__ import annotations

import pytest

from marl.core.list_snapshot import ListSnapshot, begins_with


def test_a_snapshot_keeps_its_items_while_the_list_grows() -> None:
    items = [1, 2, 3]
    snapshot = ListSnapshot(items, 3)
    items += [4, 5]
    assert list(snapshot) == [1, 2, 3]
    assert (snapshot[0], snapshot[-1], snapshot[1:], snapshot[:-1], snapshot[2:9]) == (1, 3, (2, 3), (1, 2), (3,))
    with pytest.raises(IndexError):
        snapshot[3]


@pytest.mark.parametrize("other", [ListSnapshot([1, 2, 9], 2), (1, 2)], ids=["other list", "tuple"])
def test_beginnings_are_found_in_the_same_list_in_others_and_in_tuples(
    other: ListSnapshot[int] | tuple[int, ...],
) -> None:
    items = [1, 2, 3, 4]
    long, short = ListSnapshot(items, 4), ListSnapshot(items, 2)
    assert begins_with(long, short)
    assert not begins_with(short, long)
    assert begins_with(long, other)
    assert not begins_with(other, long)
    assert not begins_with(long, (1, 3))
    assert begins_with(long, ())
