"""Command lines with a tokenizer's file: models of words, rules before and after them, damaged."""

from __future__ import annotations

import json
from typing import Any

from tests.simgpt.fuzz.damage import as_bytes, chewed, mutated
from tests.simgpt.fuzz.pieces import Pieces
from tests.simgpt.fuzz.values import EVIL, WEIRD

LETTERS = "abcde \n"
REGEXES = [
    *(r"\s+", r"\w+|[^\w\s]+", "", "(", "(a+)+$", "(?<=a)b", "((a{1000}){1000})", "[", r"\1", "."),
    *("(a|b|ab)*c", "(?i)A", "a" * 1000, r"\p{L}", "^", "$", "(?:)*"),
]
MODELS: list[dict[str, Any]] = [
    {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3}, "unk_token": "<unk>"},
    {
        **{"type": "BPE", "dropout": None, "unk_token": "<unk>", "byte_fallback": False},
        **{"continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False},
        "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "abab": 4, "c": 5},
        "merges": [["a", "b"], ["ab", "ab"]],
    },
    {
        **{"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##"},
        **{"max_input_chars_per_word": 100, "vocab": {"<unk>": 0, "a": 1, "##b": 2, "##a": 3}},
    },
    {
        **{"type": "Unigram", "unk_id": 0, "byte_fallback": False},
        "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.5], ["ab", -1.5]],
    },
]
PIECES = ["", "##", "</w>", "a", "<unk>", "x" * 5000, "\u0000", "é"]
NUMBERS = [*(0, 1, 7, -1, 0.5, 9.5, 1e300, 1e-300), *(2**16, 2**31, 2**32 - 1, 2**32, 10**12)]
VALUES = [*WEIRD, *PIECES, *NUMBERS]


class Tokenizers(Pieces):
    """Draws tokenizers, and short texts for them."""

    def _tokenizer(self) -> list[str]:
        rng = self.rng
        document: dict[str, Any] = {"version": "1.0", "model": self._model()}
        for key, draw in (
            ("normalizer", self._normalizer),
            ("pre_tokenizer", self._pre_tokenizer),
            ("added_tokens", self._added),
            ("post_processor", self._post_processor),
            ("padding", self._padding),
            ("truncation", self._truncation),
        ):
            if self.odds(0.35):
                document[key] = draw()
        if self.odds(0.35):
            document = mutated(rng, document, rng.randint(1, 2), VALUES)
        content = as_bytes(document)
        self.files["t.json"] = chewed(rng, content) if self.odds(0.1) else content
        text = "".join(rng.choices(LETTERS, k=rng.choice([0, 3, 40, 400])))
        text += rng.choice(["", "é", "<unk>", "🙂" * 9, "a" * 2000, *EVIL])
        self.files["text.txt"] = text.encode(errors="surrogatepass")
        data = ["--data", "text.txt", "--tokenizer", "t.json"]
        return ["run", "tiny-30k", *data, "--no-predict", "--steps", "1", "--timeout", "60"]

    def _model(self) -> dict[str, Any]:
        rng = self.rng
        model: dict[str, Any] = json.loads(json.dumps(rng.choice(MODELS)))
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            key = rng.choice(list(model))
            if key == "vocab" and isinstance(model[key], dict) and model[key]:
                vocab = model["vocab"]
                if self.odds(0.5):
                    del vocab[rng.choice(list(vocab))]
                else:
                    vocab[rng.choice([*vocab, *PIECES])] = rng.choice(NUMBERS)
            elif key == "merges" and self.odds(0.7):
                model[key].append(rng.choices([*model["vocab"], *PIECES], k=2))
            elif key != "type":
                model[key] = rng.choice([*PIECES, *NUMBERS, None])
        return model

    def _pattern(self) -> dict[str, str]:
        kind = self.rng.choice(["String", "Regex"])
        return {kind: self.rng.choice(REGEXES if kind == "Regex" else [*PIECES, "a"])}

    def _normalizer(self) -> dict[str, Any]:
        rng = self.rng
        replaced: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": self._pattern(), "content": rng.choice(["aa", *PIECES])}
        ]
        some: list[dict[str, Any]] = [
            {"type": kind} for kind in ("NFD", "NFKC", "Lowercase", "StripAccents", "Nmt")
        ]
        some += [{"type": "Prepend", "prepend": rng.choice(PIECES)}, {"type": "ByteLevel"}]
        each = replaced * rng.choice([1, 2, 40]) if self.odds(0.6) else rng.choices(some, k=2)
        return {"type": "Sequence", "normalizers": each}

    def _pre_tokenizer(self) -> dict[str, Any]:
        rng = self.rng
        behavior = rng.choice(["Removed", "Isolated", "MergedWithPrevious", "Contiguous"])
        split = {"type": "Split", "pattern": self._pattern(), "behavior": behavior, "invert": False}
        byte = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
        others: list[dict[str, Any]] = [
            *({"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}, byte),
            {"type": "FixedLength", "length": rng.choice([0, 1, 5])},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            {"type": "CharDelimiterSplit", "delimiter": rng.choice(["a", "", "ab"])},
        ]
        return split if self.odds(0.5) else rng.choice(others)

    def _added(self) -> list[dict[str, Any]]:
        rng = self.rng
        return [
            {
                **{
                    "id": rng.choice(NUMBERS[:8] + NUMBERS),
                    "content": rng.choice([*PIECES, "a b"]),
                },
                **{key: self.odds(0.5) for key in ("single_word", "lstrip", "rstrip", "special")},
                "normalized": self.odds(0.5),
            }
            for _ in range(rng.randint(1, 3))
        ]

    def _post_processor(self) -> dict[str, Any]:
        special = {"SpecialToken": {"id": self.rng.choice(PIECES), "type_id": 0}}
        single = [special, {"Sequence": {"id": "A", "type_id": 0}}][self.rng.randrange(2) :]
        return {
            **{"type": "TemplateProcessing", "single": single, "pair": []},
            "special_tokens": {"##": {"id": "##", "ids": [9], "tokens": ["##"]}},
        }

    def _padding(self) -> dict[str, Any]:
        return {
            **{"strategy": {"Fixed": self.rng.choice(NUMBERS)}, "direction": "Right", "pad_id": 0},
            **{"pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "<unk>"},
        }

    def _truncation(self) -> dict[str, Any]:
        most, stride = self.rng.choice(NUMBERS), self.rng.choice(NUMBERS)
        how = {"direction": "Right", "strategy": "LongestFirst"}
        return {**how, "max_length": most, "stride": stride}
