"""Rate-limited lines: nobody can fill a disk by causing them."""

from broker.rationed_log import KINDS_MAX, RationedLog


class Lines:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[tuple[str, str]] = []
        self.log = RationedLog(
            lambda kind, text: self.said.append((kind, text)), lambda: self.now, 3, 10.0
        )


def test_a_few_of_a_kind_are_logged_then_their_number() -> None:
    lines = Lines()
    for number in range(1000):
        lines.log("refused", f"line {number}")
    lines.log("connected", "another kind")
    assert [text for _, text in lines.said] == ["line 0", "line 1", "line 2", "another kind"]
    lines.now = 11.0
    lines.log.wake()
    assert lines.said[-1][1].startswith("997 more lines like the last 3 (refused)")
    lines.log("refused", "again")
    assert lines.said[-1][1] == "again"


def test_nothing_is_logged_if_nothing_was_suppressed() -> None:
    lines = Lines()
    lines.log("refused", "one")
    lines.now = 11.0
    lines.log.wake()
    assert len(lines.said) == 1


def test_the_number_of_kinds_is_bounded() -> None:
    lines = Lines()
    for number in range(10 * KINDS_MAX):
        lines.log(f"kind {number}", "line")
    assert len(lines.log._windows) <= KINDS_MAX
