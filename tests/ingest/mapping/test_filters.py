"""Filters match topics as MQTT says, and templates take fields out of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.filters import check_filter, matches, split_share
from waterclock.ingest.mapping.template import Template

LEVEL = st.text("ab$é \n", max_size=2)
TOPICS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(
    st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=4), st.sampled_from(["", "/#", "#"])
).map(lambda parts: "#" if parts[1] == "#" else "/".join(parts[0]) + parts[1])


def _matches_level_by_level(pattern: list[str], levels: list[str]) -> bool:
    """Match as section 4.7 of MQTT words it."""
    if levels[0].startswith("$") and pattern[0] in ("+", "#"):
        return False
    if not pattern:
        return not levels
    for at, each in enumerate(pattern):
        if each == "#":
            return len(levels) >= at  # the level above counts as well
        if at == len(levels) or each not in ("+", levels[at]):
            return False
    return len(pattern) == len(levels)


@given(FILTERS, TOPICS)
def test_filters_match_as_the_standard_words_it(text: str, topic: str) -> None:
    assert matches(text, topic) == _matches_level_by_level(text.split("/"), topic.split("/"))


@pytest.mark.parametrize(
    ("text", "topic"),
    [("sport/#", "sport"), ("te/+/+/+/+/m/+", "te/device/main///m/"), ("#", "a//b"), ("/+", "/finance"), ("+/+", "/a")],
)
def test_matching_topics(text: str, topic: str) -> None:
    assert matches(text, topic)


@pytest.mark.parametrize(("text", "topic"), [("+", "/finance"), ("#", "$SYS/uptime"), ("a/+", "a"), ("a", "a/")])
def test_topics_that_do_not_match(text: str, topic: str) -> None:
    assert not matches(text, topic)


@pytest.mark.parametrize(
    "text", ["", "a/#/b", "a+/b", "sport#", "a\0b", "$share/g", "$share//a", "$share/a+/b", "a" * 70_000]
)
def test_invalid_filters_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="filter must"):
        check_filter(text)


def test_a_shared_filter_is_split() -> None:
    assert split_share(check_filter("$share/group/a/#")) == ("group", "a/#")
    assert split_share("$shared/a") == (None, "$shared/a")


@given(st.lists(LEVEL, min_size=1, max_size=3), LEVEL.filter(bool))
def test_a_template_takes_one_level_and_the_rest(rest: list[str], source: str) -> None:
    stream = "/".join(rest)
    template = Template.parse("plant/{_}/{source}/{stream...}")
    if stream:
        assert template.match(f"plant/x/{source}/{stream}") == {"source": source, "stream": stream}


@pytest.mark.parametrize(
    "text", ["{source}/{source}", "{source...}/{stream...}", "{device}/{stream}", "a{source}", "a/+", "a/#", "{source"]
)
def test_invalid_templates_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="template"):
        Template.parse(text)


def test_an_empty_level_names_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match="empty"):
        Template.parse("{source}/{stream}").match("/temperature")
