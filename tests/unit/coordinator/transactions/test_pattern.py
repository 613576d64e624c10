"""Patterns of transactional ids, beside Python's own `re` where the two syntaxes agree."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.coordinator.transactions.pattern import BadPattern, IdPattern


def matches(pattern: str, text: str) -> bool:
    """The result, however many steps it takes."""
    steps = IdPattern(pattern).matches(text)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return bool(finished.value)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("abc", "abc", "abcd"),
        ("abc", "abc", "ab"),
        ("a.c", "axc", "a\nc"),
        ("(?s)a.c", "a\nc", "ac"),
        ("app-.*", "app-1", "my-app-1"),
        (".*-app", "my-app", "my-app-1"),
        ("a|b|cd", "cd", "c"),
        ("a*", "", "b"),
        ("a+?", "aaa", ""),
        ("a?b", "b", "aab"),
        ("a{2,3}", "aaa", "aaaa"),
        ("a{2}", "aa", "a"),
        ("a{2,}", "aaaaa", "a"),
        ("(ab){2}", "abab", "ab"),
        ("a{,3}", "a{,3}", "aa"),
        ("x{y", "x{y", "x"),
        ("[a-c]+", "abcabc", "abd"),
        ("[^a-c]+", "xyz", "xaz"),
        ("[]a]+", "]a]", "b"),
        ("[a\\]-]+", "a]-", "b"),
        ("[\\d_]+", "12_3", "12-3"),
        ("[[:alpha:]]+", "ab", "a1"),
        ("[[:^digit:]]+", "ab", "a1"),
        ("\\d+\\w\\s\\D\\W\\S", "12a b-c", "12a bcc"),
        ("\\p{Lu}\\pL+\\P{N}[\\p{Nd}]\\p{^L}", "Äöß-1-", "Äöß-1a"),
        ("(?i)aBc", "AbC", "abd"),
        ("a(?i)b", "aB", "AB"),
        ("(?i:a)b", "Ab", "AB"),
        ("(?-i:a)", "a", "A"),
        ("(?P<name>a)b", "ab", "b"),
        ("(?<name>a)b", "ab", "b"),
        ("(?:a|b)c", "bc", "c"),
        ("^ab$", "ab", "xab"),
        ("\\Aab\\z", "ab", "abx"),
        ("a\\b.*", "a b", "ab"),
        ("a\\Bb", "ab", "a b"),
        ("(?m)a\\n^b$", "a\nb", "a\nbc"),
        ("\\Qa.b\\E+", "a.bb", "axb"),
        ("\\Q*\\\\E\\\\Q", "*\\\\Q", "*"),
        ("\\x41\\x{1F600}\\.\\n", "A\U0001f600.\n", "A"),
        ("(a*)*b", "aaab", "aaa"),
        ("(|a)+", "aa", "b"),
        ("", "", "a"),
    ],
)
def test_what_matches(pattern: str, yes: str, no: str) -> None:
    assert matches(pattern, yes)
    assert not matches(pattern, no)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[", "[a", "[b-a]", "*", "+a", "?", "a**", "a{2}{3}", "a{3,2}", "a{1001}", "a{99999}",
        "\\", "\\1", "\\k<a>", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?P<>a)", "(?P<a-b>c)", "(?x)a", "(?",
        "\\x{110000}", "\\xg", "[[:foo:]]", "\\pX", "\\p{Greek", "\\p",
        "a|*", "(" * 60 + ")" * 60, "a{1000}b{1000}", "((a{100}){100}){100}",
    ],
)  # fmt: skip
def test_what_is_not_a_pattern(pattern: str) -> None:
    with pytest.raises(BadPattern):
        IdPattern(pattern)


@given(st.text("ab(|)*+?[]-^.", max_size=8), st.text("abc", max_size=6))
def test_like_re(pattern: str, text: str) -> None:
    """What both take has the same meaning."""
    try:
        ours = matches(pattern, text)
    except BadPattern:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = re.fullmatch(pattern, text) is not None
        except re.error:
            return
    if re.search(r"[*+?]\+|\[\]|\[\^\]|--|\[\[", pattern) is None:  # possessive, or of another meaning there
        assert ours == expected


def test_a_pattern_that_tries_many_paths_takes_linear_time() -> None:
    """Python's `re` would not return for ages."""
    assert not matches("(a|aa)+b", "a" * 5_000)
    steps = IdPattern("(a|aa|aaa)*" * 20 + "b").matches("a" * 2_000)
    assert next(steps) is None, "it yields in between"
