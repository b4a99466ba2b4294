"""The evaluator of the dashboard's expressions rejects what Prometheus would reject."""

import pytest

from tests.support.promql import NoSeries, Query, Scrape, Vector

BEFORE: Scrape = {("x_total", (("instance", "a"),)): 10.0}
NOW: Scrape = {
    ("x_total", (("instance", "a"),)): 40.0,
    ("depth", (("instance", "a"), ("queue", "q"))): 5.0,
    ("depth", (("instance", "b"), ("queue", "r"))): 7.0,
    ("info", (("instance", "a"), ("node", "one"))): 1.0,
    ("info", (("instance", "b"), ("node", "two"))): 1.0,
    ("t_bucket", (("instance", "a"), ("le", "0.5"))): 9.0,
    ("t_bucket", (("instance", "a"), ("le", "+Inf"))): 10.0,
}


def value(text: str) -> Vector | float:
    return Query(text, BEFORE, NOW, 10.0).value()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate(x_total[1m])", {(("instance", "a"),): 3.0}),
        ("increase(x_total[1m]) > 40", {}),
        ("sum(depth)", {(): 12.0}),
        ('depth{instance="b"} - depth{instance="b"} + 2 * 3',
         {(("instance", "b"), ("queue", "r")): 6.0}),
        ("sum by (node) (depth * on(instance) group_left(node) info)",
         {(("node", "one"),): 5.0, (("node", "two"),): 7.0}),
        ("histogram_quantile(0.9, sum by (le) (t_bucket))", {(): 0.5}),
        ("max(depth) > 6 and sum(info) == 2", {(): 7.0}),
        ("max(depth) > 8 or sum(info) == 2", {(): 2.0}),
    ],
)  # fmt: skip
def test_an_expression_has_its_value(text: str, expected: Vector) -> None:
    assert value(text) == expected


@pytest.mark.parametrize("text", ["dept", 'depth{instance="c"}', "rate(y_total[1m]) > 1"])
def test_an_unreported_metric_is_an_error(text: str) -> None:
    with pytest.raises(NoSeries):
        value(text)


@pytest.mark.parametrize(
    "text",
    ["sum by (vhost) (depth)", "rate(x_total)", "depth[1m]", "sum(depth", "depth * on(queue) info"],
)
def test_a_mistake_is_an_error(text: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        assert value(text), "many-to-one without a match is empty"
