"""A few hundred drawn command lines, always the same, among the slow tests.

`make fuzz` runs ten thousand others.
"""

from __future__ import annotations

import pytest

from tests.simgpt.fuzz.bases import bases_of
from tests.simgpt.fuzz.child import Said
from tests.simgpt.fuzz.draw import QUICK, Draw
from tests.simgpt.fuzz.fuzz import fuzz
from tests.simgpt.fuzz.judge import page_wrong, wrong_with
from tests.simgpt.fuzz.page import wrong_with_reply
from tests.simgpt.fuzz.values import MARK
from tests.simgpt.serve.raw import Got

SEED, EACH = 1, 38
PARTS = [range(n * EACH, (n + 1) * EACH) for n in range(8)]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Good answers, to be damaged."""
    return bases_of(tmp_path_factory.mktemp("bases"))


@pytest.mark.slow
@pytest.mark.parametrize("numbers", PARTS, ids=str)
def test_no_input_is_answered_with_anything_but_an_answer_or_a_sentence(
    numbers: range, bases: dict[str, bytes]
) -> None:
    findings = fuzz(SEED, numbers, bases, QUICK)
    assert findings.lines == []
    assert findings.inputs == len(numbers)
    assert {"0", "2"} <= findings.statuses.keys()  # neither all refused nor all taken


@pytest.mark.slow
def test_an_input_of_a_seed_is_always_the_same(bases: dict[str, bytes]) -> None:
    for number in range(50):
        first, second = (Draw(SEED, number, bases, QUICK) for _ in range(2))
        assert (first.args, first.files) == (second.args, second.files)


SENTENCE = "simgpt: no\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(2, "", SENTENCE, "", 0), ""),
        (Said(1, "", SENTENCE, "", 0), "status 1"),
        (Said(-9, "", "", "", 0), "status -9"),
        (Said(2, "", "", "ValueError: x at a.py:1", 0), "ValueError"),
        (Said(None, "", "", "hang: 60 s", 0), "hang"),
        (Said(2, "", "no\n", "", 0), "0 sentences"),
        (Said(2, "", SENTENCE * 2, "", 0), "2 sentences"),
        (Said(2, "", SENTENCE + "more\n", "", 0), "1 sentences"),
        (Said(2, "", "simgpt: " + "x" * 3000 + "\n", "", 0), "thousands of characters"),
        (Said(2, "", "simgpt: [Errno 2]\n", "", 0), "Python speaks"),
        (Said(2, "", "simgpt: \x1b[2J\n", "", 0), "control characters"),
        (Said(0, "a\u202eb\n", "", "", 0), "control characters"),
        (Said(0, "1\n", "x.py:1: UserWarning: y\n", "", 0), "UserWarning"),
        (Said(5, "", "", "", 0), "without a reason"),
        (Said(0, '{"a": NaN}', "", "", 0), "not strict"),
        (Said(0, "{", "", "", 0), "not strict"),
    ],
)
def test_the_judge_sees_what_is_wrong(
    said: Said, words: str, bases: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = Draw(SEED, 0, bases, ["models"])
    draw.args = ["models", "--json"]
    wrong = wrong_with(draw, said, tmp_path_factory.mktemp("case"))
    assert words in wrong
    assert bool(words) == bool(wrong)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('"step_s": 1.0', ""),
        ('"step_s": 0.0', "step_s is 0.0"),
        ('"step_s": 1.0, "hfu": 1.1', "HFU 1.1"),
        ('"step_s": 1.0, "mfu": 0.6', "MFU 0.6"),
        ('"step_s": 2.0', "does not sum"),
        ('"step_s": 1.0, "memory": {"peak_bytes": 0}', "memory"),
    ],
)
def test_the_judge_knows_what_no_step_can_be(
    change: str, words: str, bases: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = '"mfu": 0.4, "hfu": 0.5, "breakdown_s": {"a": 1.0}, "memory": {"peak_bytes": 1}'
    draw = Draw(SEED, 0, bases, ["models"])
    draw.args = ["models", "--json"]
    said = Said(0, f'{{"rows": [{{{good}, {change}}}]}}', "", "", 0)
    wrong = wrong_with(draw, said, tmp_path_factory.mktemp("case"))
    assert words in wrong
    assert bool(words) == bool(wrong)


@pytest.mark.parametrize(
    ("status", "fields", "body", "words"),
    [
        (400, {}, b"{}", ""),
        (200, {}, MARK.encode(), ""),
        (500, {}, b"{}", "status 500"),
        (400, {}, MARK.encode(), "repeats"),
        (400, {"cache-control": "public"}, b"{}", "cache-control"),
        (400, {"content-security-policy": "script-src *"}, b"{}", "content-security-policy"),
        (400, {"content-type": "text/html"}, b"{}", "no page"),
    ],
)
def test_the_judge_sees_what_is_wrong_with_a_reply(
    status: int, fields: dict[str, str], body: bytes, words: str
) -> None:
    usual = {"content-security-policy": "default-src 'none'", "x-content-type-options": "nosniff"}
    usual |= {"referrer-policy": "no-referrer", "cache-control": "no-store"}
    wrong = "".join(wrong_with_reply(Got(status, usual | fields, body)))
    assert words in wrong
    assert bool(words) == bool(wrong)


def test_the_judge_sees_what_a_name_put_into_a_page() -> None:
    for element in (
        "<img>",
        "<p onclick=x>",
        '<a href="javascript:zq7()">',
        "<script></script>" * 4,
        "<pre>reboot</pre>",
        "<pre>simgpt predict tiny-1m; reboot</pre>",
    ):
        assert page_wrong(f"<p>{element}</p>") != ""
    assert page_wrong("<p>&lt;img src=x onerror=zq7()&gt;</p><script></script>") == ""
    assert page_wrong("<pre>simgpt predict &#39;a;b&#39; -m frontier</pre><p>reboot</p>") == ""
