"""What an answer was asked of: its files as they were then, and the command that asks it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.messages import names
from validation.report.answer_files import ReportError
from validation.report.provenance import check_file, digest_of


def test_a_file_is_opened_again_only_if_it_is_byte_by_byte_the_one_of_then(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("nodes = 4\n", encoding="utf-8")
    known = {str(own): digest_of(own)}
    check_file(str(own), known)
    check_file(f"{own}:variant", known)
    check_file("frontier", {})  # no file at all
    with pytest.raises(ReportError, check=names(str(own))):
        check_file(str(own), {})
    own.write_text("nodes = 5\n", encoding="utf-8")
    with pytest.raises(ReportError, check=names(str(own))):
        check_file(str(own), known)
    own.unlink()
    with pytest.raises(ReportError, check=names(str(own))):
        check_file(str(own), known)


def test_a_file_behind_a_colon_is_a_file_too() -> None:
    with pytest.raises(ReportError, check=names("a:secret.toml")):
        check_file("a:secret.toml", {})
    check_file("frontier:2024", {})
