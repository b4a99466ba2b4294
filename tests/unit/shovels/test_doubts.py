"""Doubtful messages, which are sent without a number."""

from tools.shovel.doubts import Doubts


def test_doubts_cover_all_up_to_a_place_and_single_ones_above() -> None:
    doubts = Doubts({"q": 3})
    doubts.add("q", 7)
    doubts.add("other", 2)
    assert [place for place in range(10) if doubts.has("q", place)] == [0, 1, 2, 3, 7]
    assert [place for place in range(4) if doubts.has("other", place)] == [2]
    doubts.add_all_up_to("q", 5)
    doubts.add_all_up_to("q", 4)
    assert [place for place in range(10) if doubts.has("q", place)] == [0, 1, 2, 3, 4, 5, 7]
    assert doubts.row() == {"q": 7, "other": 2}


def test_a_message_taken_without_a_number_is_no_longer_doubtful() -> None:
    doubts = Doubts({})
    doubts.add("q", 7)
    doubts.add_all_up_to("q", 5)
    doubts.settle("q", 7)
    doubts.settle("q", 4)
    assert doubts.row() == {"q": 5}
    assert doubts.has("q", 4), "its number stays too old"
