"""A model as somebody described it, and what of the description it does not carry."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from topologies.records import record
from workload.gpt import GPT

BEYOND = {
    "qkvo": "biases of the attention's linears",
    "qkv": "biases of the query, key and value projections",
    "o": "biases of the attention output projection",
    "mlp": "biases of the MLP's linears",
    "head": "biases of the classifier",
    "parts": "other norms or biases, or another order of layers",
    "activation": "another activation",
    "scales": "scaling or capping of activations or logits",
    "rope": "another kind of RoPE",
    "squared_relu": "squared ReLUs",
}


@record
class Note:
    """A sentence on what was assumed or left out of a model.

    It is worth saying unless the user sets `field` himself, and only of sequences of more than
    `above` tokens.
    """

    text: str
    field: str = ""
    above: int = 0


@record
class Described:
    """A model and the notes on what its description says beyond it.

    `beyond` names what the model itself has and `GPT` no field for, by the words of `BEYOND`, and
    `missing` is how many parameters that is, where it is counted: below 0, `gpt` has too many.
    """

    gpt: GPT
    notes: tuple[Note, ...] = ()
    beyond: tuple[str, ...] = ()
    missing: int = 0

    def notes_on(self, gpt: GPT, given: Collection[str]) -> Iterator[str]:
        """What to say of the model once the `given` fields of it have been set."""
        for note in self.notes:
            if note.field not in given and gpt.sequence > note.above:
                yield f"{self.gpt.name}: {note.text}"
