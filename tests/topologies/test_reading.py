"""The reader of users' files: what it takes, and one sentence for what it refuses."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from tests.messages import assert_names, names
from topologies.errors import SimgptError
from topologies.files import reading
from topologies.files.reading import ANSWER_BYTES, MOST_DEPTH, MOST_LINES, SMALL_BYTES, UserFile

FILE = UserFile("thing", SimgptError)


def refusal(path: str | Path) -> str:
    with pytest.raises(SimgptError) as error:
        FILE.document(path)
    assert error.value.exit_code == 2
    return str(error.value)


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


DEEP = (str(MOST_DEPTH),)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.json", nested(MOST_DEPTH + 1), DEEP),
        ("a.json", nested(100_000), DEEP),
        ("a.json", '{"a":' * 5000 + "1" + "}" * 5000, DEEP),
        ("a.toml", f"x = {nested(MOST_DEPTH)}", DEEP),
        ("a.toml", f"x = {nested(5000)}", DEEP),
        ("a.toml", "a." * 5000 + "b = 1", DEEP),
        ("a.json", '{"x": ' + "9" * 5000 + "}", ("JSON", "digits")),
        ("a.toml", "x = " + "9" * 5000, ("TOML", "digits")),
        ("a.json", '{"x": ' + "9" * 400 + "}", ("x", "digits")),
        ("a.json", '{"x": NaN}', ("JSON", "NaN")),
        ("a.json", "[Infinity]", ("JSON", "Infinity")),
        ("a.json", '{"x": -1e999}', ("x", "-inf")),
        ("a.toml", "x = nan", ("x", "nan")),
        ("a.toml", "x = [1, inf]", ("2", "inf")),
        ("a.toml", "x = 1979-05-27", ("x", "1979-05-27")),
        ("a.json", '{"x": "\\ud800"}', ("x", "surrogate")),
        ("a.json", '{"\\udfff": 1}', ("\\udfff", "surrogate")),
        ("a.json", b'{"x": "\xff"}', ("7", "UTF-8")),
        ("a.json", b"\x00", ("JSON",)),
        ("a.toml", b"", ()),
        ("a.json", b"", ("JSON",)),
        ("a.toml", b"#" * (SMALL_BYTES + 1), ("1 MiB",)),
    ],
)
def test_a_file_that_holds_no_document_is_refused_in_a_sentence(
    name: str, content: str | bytes, named: tuple[str, ...], tmp_path: Path
) -> None:
    path = written(tmp_path, name, content)
    if not named:
        assert FILE.document(path) == {}
        return
    said = refusal(path)
    assert str(path) in said
    assert_names(said.replace(str(path), ""), *named)
    assert "\n" not in said


PARTS = SMALL_BYTES // 2 - 8
MANY = {
    "bare": "a." * PARTS + "b = 1",
    "spaced": "a . " * (PARTS // 2) + "b = 1",
    "quoted": '"".' * (PARTS // 2) + "b = 1",
    "literal": "''." * (PARTS // 2) + "b = 1",
    "header": "[" + "a." * PARTS + "b]",
    "inline": "x = {" + "a." * PARTS + "b = 1}",
    "after a text": 'x = """\n\\""" a. """"\n' + "a." * (PARTS - 12) + "b = 1",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("content", MANY.values(), ids=MANY)
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(
    content: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "a.toml", content)
    assert_names(refusal(path), *DEEP)


def test_dots_that_join_no_keys_are_read(tmp_path: Path) -> None:
    dots = "a." * 100 + "b"
    text = f"""
# {dots}
basic = "\\" {dots}"
literal = '{dots} "'
several = \"\"\"
{dots} = \\\"\"" \"" {dots}\"\"\"\"
plain = '''
{dots} "
''''
numbers = [{"1.5, " * 100}2.5]
"{dots}".c = 1  # {dots}
"""
    found = FILE.document(written(tmp_path, "a.toml", text))
    assert found["basic"] == f'" {dots}'
    assert found["several"] == f'{dots} = """ "" {dots}"'
    assert found["plain"] == f"{dots} \"\n'"
    assert found[dots] == {"c": 1}
    deepest = FILE.document(written(tmp_path, "b.toml", "a." * (MOST_DEPTH - 1) + "b = 1"))
    assert list(deepest) == ["a"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "content", ["a" * SMALL_BYTES, '"""\n' + '\\"""\n' * 200_000, "a " * 2**19, "'\n" * 2**19]
)
def test_what_is_no_toml_is_refused_within_seconds(content: str, tmp_path: Path) -> None:
    assert_names(refusal(written(tmp_path, "a.toml", content)), "a.toml", "TOML")


def test_what_is_just_within_the_limits_is_read(tmp_path: Path) -> None:
    deepest = written(tmp_path, "deep.json", nested(MOST_DEPTH))
    assert FILE.parsed(nested(MOST_DEPTH), "x") == FILE.document(deepest)
    largest = written(tmp_path, "large.toml", "x = 1\n".ljust(SMALL_BYTES, "#"))
    assert FILE.document(largest) == {"x": 1}
    marked = written(tmp_path, "marked.toml", b"\xef\xbb\xbfx = '\xc3\xa4'")
    assert FILE.document(marked) == {"x": "ä"}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("missing.toml", ("missing.toml", os.strerror(errno.ENOENT))),
        ("folder.toml", ("folder.toml", os.strerror(errno.EISDIR))),
        ("loop.toml", ("loop.toml", os.strerror(errno.ELOOP))),
        ("fifo.toml", ("fifo.toml",)),
        ("zero.toml", ("zero.toml",)),
        ("nul\0.toml", (r"nul\x00.toml", "NUL")),
        ("n" * 300, (os.strerror(errno.ENAMETOOLONG),)),
    ],
)
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(
    name: str, named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.toml").mkdir()
    Path("loop.toml").symlink_to("loop.toml")
    os.mkfifo("fifo.toml")
    Path("zero.toml").symlink_to("/dev/zero")
    assert_names(refusal(name), *named)


def test_no_more_is_read_of_a_file_than_its_kind_ever_has(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(2**26)
    tracemalloc.start()
    try:
        assert_names(refusal(path), "1 MiB")
        assert tracemalloc.get_traced_memory()[1] < 8 * SMALL_BYTES
    finally:
        tracemalloc.stop()


def test_an_answer_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    answer = UserFile("answer", SimgptError, ANSWER_BYTES, most_values=1000)
    assert len(answer.parsed("[" + "{}," * 490 + "{}]", "a.json")) == 491
    with pytest.raises(SimgptError, check=names("a.json", "1,000")):
        answer.parsed("[" + "{}," * 500 + "{}]", "a.json")


def test_a_table_has_lines_with_their_ends_and_not_too_many(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'a,b\r\n"1\n2",3\u2028\n')
    assert FILE.lines(path) == ["a,b\r\n", '"1\n', '2",3\u2028\n']
    path = written(tmp_path, "b.csv", "\n" * (MOST_LINES + 1))
    with pytest.raises(SimgptError, check=names("100,000")):
        FILE.lines(path)


def test_as_many_values_as_a_document_may_have_fit_into_a_gigabyte() -> None:
    text = json.dumps([{"key": 0.5}] * 10_000)  # three values each, the list's own aside
    tracemalloc.start()
    try:
        document = json.loads(text)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / (3 * len(document)) * reading.MOST_VALUES < 2**30
