"""`simgpt import` as people see it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.simgpt.face import assert_golden, simgpt

FILES = Path(__file__).parent / "files"
SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "pretrain.sh"


def test_an_imported_script_as_a_person_reads_it() -> None:
    said = simgpt("import", str(SCRIPT), "-m", "64x8xH100,8xNDR", "-v")
    assert (said.status, said.err) == (0, "")
    assert_golden("import.txt", said.out)


def test_the_printed_command_asks_the_question() -> None:
    said = simgpt("import", str(SCRIPT), "-m", "64x8xH100,8xNDR", "--json")
    words = shlex.split(json.loads(said.out)["predict"])
    answer = simgpt(*words[1:], "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["plan"]["interleave"] == 5


def test_a_refused_file_is_said_whole_in_json_and_ends_as_refused_input_does() -> None:
    said = simgpt("import", str(FILES / "experts.yaml"), "-n", "8", "--json")
    assert said.status == 2
    assert said.err == (
        "simgpt: refused: --num-experts 8: layers of experts are not modelled "
        "(and 1 other setting)\n"
    )
    record = json.loads(said.out)
    assert record["predict"] is None
    assert [each["name"] for each in record["refused"]] == [
        "--num-experts",
        "--expert-model-parallel-size",
    ]
    assert "--log-interval 1" in record["without_effect"]


def test_what_the_files_do_not_say_of_a_model_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "part.txt"
    path.write_text("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32")
    said = simgpt("import", str(path))
    assert said.status == 2
    assert said.err == "simgpt: the files do not say vocab; give --model-set vocab=…\n"
    assert simgpt("import", str(path), "--model-set", "vocab=512").status == 0
