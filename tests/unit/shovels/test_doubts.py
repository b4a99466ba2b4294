"""Doubtful messages, which are sent without a number."""

from tools.shovel.doubts import TOLD_MAX, Doubts


def test_doubts_cover_all_up_to_a_place_and_single_ones_above() -> None:
    doubts = Doubts({"q": [3]})
    doubts.add("q", 7)
    doubts.add("other", 2)
    assert [place for place in range(10) if doubts.has("q", place)] == [0, 1, 2, 3, 7]
    assert [place for place in range(4) if doubts.has("other", place)] == [2]
    doubts.add_all_up_to("q", 5)
    doubts.add_all_up_to("q", 4)
    assert [place for place in range(10) if doubts.has("q", place)] == [0, 1, 2, 3, 4, 5, 7]
    assert doubts.row() == {"q": [5, 7], "other": [-1, 2]}
    again = Doubts(doubts.row())
    assert [place for place in range(10) if again.has("q", place)] == [0, 1, 2, 3, 4, 5, 7]
    assert again.row() == doubts.row()


def test_a_message_taken_without_a_number_is_no_longer_doubtful() -> None:
    doubts = Doubts({})
    doubts.add("q", 7)
    doubts.add_all_up_to("q", 5)
    doubts.settle("q", 7)
    doubts.settle("q", 4)
    assert doubts.row() == {"q": [5]}
    assert doubts.has("q", 4), "its number stays too old"


def test_few_places_are_told_and_none_is_forgotten() -> None:
    """A report is one line of limited length."""
    doubts = Doubts({"full": [-1, *range(0, 2 * TOLD_MAX, 2)]})
    doubts.add("q", 7)
    doubts.add("full", 2 * TOLD_MAX)
    row = doubts.row()
    assert row == {"full": [0, *range(2, 2 * TOLD_MAX + 1, 2)], "q": [7]}
    assert sum(len(places) - 1 for places in row.values()) == TOLD_MAX
