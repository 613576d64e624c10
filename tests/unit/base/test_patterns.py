"""Patterns of others: what they match, what is refused, and that no text takes long."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from kalda.base.patterns import MAX_LENGTH, MAX_PROGRAM, BadPattern, java_pattern, re2_pattern


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
    assert re2_pattern(pattern).matches(yes)
    assert not re2_pattern(pattern).matches(no)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[", "[a", "[b-a]", "*", "+a", "?", "a**", "a{2}{3}", "a{3,2}", "a{1001}", "a{99999}",
        "\\", "\\1", "\\k<a>", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?P<>a)", "(?P<a-b>c)", "(?x)a", "(?",
        "\\C", "a\\\\\\C", "\\Qa\\E\\C", "\ud800", "\\x{110000}", "\\xg", "[[:foo:]]", "\\pX", "\\p{Greek", "\\p",
        "a|*", "((a{100}){100}){100}", "(\\pL?){500}", f"(a{{{1000}}}){{10}}a{{{1000}}}b",
    ],
)  # fmt: skip
def test_what_is_not_a_pattern(pattern: str) -> None:
    with pytest.raises(BadPattern):
        re2_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a.c", "abc", "a\nc"),
        ("a.c", "a\tc", "a\u2028c"),
        ("(?s)a.c", "a\rc", "ac"),
        ("(?s:a.)b.", "a\nbc", "a\nb\n"),
        ("[a[bc]]+", "abc", "d"),
        ("[]a]+", "]a", "b"),
        ("[^]a]", "b", "]"),
        ("[a-]+", "a-", "b"),
        ("[\\w-]+", "a-b", "a b"),
        ("[\\s-.]+", " -.", "!"),
        ("[^\\s-.]+", "!,", "-"),
        ("[\\h-z]+", "\u3000-z", "a"),
        ("[[ab]-z]+", "ab-z", "x"),
        ("[\\s-\\w]+", " -a", "!"),
        ("[[v-z]]+", "w", "-"),
        ("[a-f-z]+", "e-z", "h"),
        ("\\Qa.b\\E+", "a.bb", "axb"),
        ("[\\Q]-\\E]+", "]-", "a"),
        ("(?<name>a)b", "ab", "b"),
        ("a}]", "a}]", "a"),
        ("\\u0041\\x42\\0103\\x{1F600}\\uD83D\\uDE00", "ABC\U0001f600\U0001f600", "A"),
        ("\\cA\\e\\t", "\x01\x1b\t", "A"),
        ("\\s+", " \x0b\t", "\xa0"),
        ("[\\S]+", "a\xa0", "\x0b"),
        ("\\h\\v\\R", "\xa0\x0b\r\n", " a\n"),
        ("\\H\\V", "ab", " b"),
        ("\\p{Alpha}[\\p{Digit}\\P{Upper}]\\p{IsLatin}\\pL", "a1\xe9b", "a1bB1"),
        ("(?i:AB)c", "abc", "abC"),
        ("(?i)a(?-i)b", "Ab", "AB"),
        ("(?u)x\\Z", "x", "X"),
        ("a{2}b{1,}c{0,1}?", "aabb", "ab"),
        ("\\A\\bab\\b\\z", "ab", "a b"),
        ("(.*a){25}", "xa" * 25, "xa" * 24),
        ("", "", "a"),
    ],
)
def test_what_matches_in_javas_syntax(pattern: str, yes: str, no: str) -> None:
    """As `java.util.regex` of OpenJDK 17, with which 20,000 random patterns were compared."""
    assert java_pattern(pattern).matches(yes)
    assert not java_pattern(pattern).matches(no)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "(a",
        "a)",
        "[",
        "[a",
        "*",
        "a**",
        "a{",
        "{a",
        "a{,2}",
        "a{3,2}",
        "[b-a]",
        "[\\00-\\s]",
        "[\\v-a]",
        "a\\",
        "\\y",
        "[\\b]",
        "(?i)*",
        "\\u12",
        "\\ud800",
        "\\0",
        "(?<1>a)",
        "(?P<n>a)",
        "(?",
        "\\p{javaLowerCase}",
        "\\p",
        # what RE2 has not
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?<!a)",
        "(?>a)",
        "(a)\\1",
        "(?<n>a)\\k<n>",
        "a*+",
        "a{2}+",
        "[a-z&&[^b]]",
        "[a[^b]]",
        "(?x)a",
        "(?d)a",
        "\\G",
        "\\X",
        "\\b{g}",
    ],
)
def test_what_is_not_a_pattern_in_javas_syntax(pattern: str) -> None:
    with pytest.raises(BadPattern):
        java_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(.*a){25}", "(.?){150}y", "(a|aa)+b", "(x+x+)+y", "(a*)*b"])
@pytest.mark.parametrize("compiled", [re2_pattern, java_pattern])
def test_a_pattern_that_tries_many_paths_takes_linear_time(pattern: str, compiled: object) -> None:
    """Python's `re` would not return for ages."""
    assert callable(compiled)
    found = compiled(pattern)
    assert found.size <= MAX_PROGRAM
    assert not found.matches("ab" * 500 + "c")


@pytest.mark.parametrize("piece", ["(", "[", "(?:", "a{1000}", "[^", "\\Q", "(?i)", "a|", "x*?"])
@pytest.mark.parametrize("compiled", [re2_pattern, java_pattern])
def test_the_longest_patterns_are_taken_or_refused(piece: str, compiled: object) -> None:
    """Nothing else is raised, whatever a client sends."""
    assert callable(compiled)
    with pytest.raises(BadPattern, match="it has 8193 characters"):
        compiled("a" * (MAX_LENGTH + 1))
    for pattern in (piece * (MAX_LENGTH // len(piece)), piece * 500 + ")]" * 500):
        with contextlib.suppress(BadPattern):
            compiled(pattern).matches("a" * 256)


def test_a_text_that_cannot_be_encoded_matches_nothing() -> None:
    assert not java_pattern(".*").matches("\ud800")


def test_a_node_without_patterns_does_not_import_re2() -> None:
    program = (
        "import sys; from kalda.broker.process import node\n"
        "from kalda.security.principals import PrincipalMapping\n"
        "PrincipalMapping(' DEFAULT ').name_of('CN=a'); print('re2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
