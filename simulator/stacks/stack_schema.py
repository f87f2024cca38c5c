"""What the keys of a stack's file may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.costs.graph_scopes import SCOPES
from simulator.stacks.logged import COUNTS as COUNTS_OF_LOGS
from simulator.stacks.runs import SOME_LAYERS
from simulator.stacks.stack import StackError
from simulator.stacks.stage_split import BY_COST, SPLIT
from simulator.stacks.where import NO_KEYS, WHEN, WHERE, is_bound
from topologies.errors import SimgptError
from topologies.files.schema import nearest
from topologies.files.units import quantity
from workload.exchange.table import OF_STACKS
from workload.grid import AXES, check_order
from workload.kinds import COLLECTIVES
from workload.model.fields import KEYS as KEYS_OF_MODELS
from workload.op import FORWARD
from workload.overlaps import EVERY
from workload.passes.stack import SUMS, TRAINING
from workload.pipeline.message_order import FRAMEWORKS
from workload.plan_text import KEYS, plan_value
from workload.recomputation.parts import CORE, PARTS, PER_OP, RECOMPUTES, SELECTIVE
from workload.splits.plan_values import CHOICES, MOST

MOST_RATE = 1e6
MOST_ELEMENTS = 10**12  # a tensor of more is in no device's memory
KNOWN = {*KEYS, *KEYS_OF_MODELS}  # keys of a plan and of a model
TEXTS_OF_SEVERAL = (*AXES, "order", "overlap", "recompute", "schedule", "dispatcher", "zero")
AGAIN = (*RECOMPUTES, PER_OP, SOME_LAYERS, *(part for part in PARTS if part != CORE))
Rule = tuple[Callable[[Any], bool], str]  # whether a value holds, and what it must be


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST_RATE


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _is_elements(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_ELEMENTS


def _is_duration(value: Any) -> bool:
    try:
        return isinstance(value, str) and quantity(value, "s") >= 0
    except SimgptError:
        return False


def _is_size(value: Any) -> bool:
    try:
        return isinstance(value, str) and quantity(value, "bytes") >= 0
    except SimgptError:
        return False


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _list_of(known: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(known, value))


def _is_fraction(value: Any) -> bool:
    return _is_number(value) and value <= 1


def _table_of(known: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(known, value.values()))


def _is_by_size(value: Any) -> bool:
    return bool(value) and SHARES[0](value) and all(str(key).isdecimal() for key in value)


def _is_exchange(value: Any) -> bool:
    """Whether it is what `Stack.kernel_rates` reads."""
    return isinstance(value, Mapping) and all(
        key in EXCHANGE_KERNELS and EXCHANGE_KERNELS[key](each) for key, each in value.items()
    )


def _is_apart(value: Any) -> bool:
    """Whether it is what `together` of simulator/stacks/apart.py reads."""
    return (
        bool(value)
        and isinstance(value, Mapping)
        and all(
            key in KEYS and (_is_word(each) or (bool(each) and _list_of(_is_word)(each)))
            for key, each in value.items()
        )
    )


def _is_need(value: Any) -> bool:
    """Whether it is a rule as simulator/stacks/runs.py reads it."""
    return (
        isinstance(value, Mapping)
        and set(value) == {"when", "needs"}
        and all(
            isinstance(part, Mapping) and bool(part) and set(part) <= KNOWN
            for part in value.values()
        )
    )


def _is_order(value: Any) -> bool:
    try:
        check_order(value)
    except (SimgptError, AttributeError):
        return False
    return True


def _is_word(value: Any) -> bool:
    return isinstance(value, str)


NUMBER: Rule = (_is_number, "a number above 0")
COUNT: Rule = (_is_count, "a whole number")
ELEMENTS: Rule = (_is_elements, "a whole number of elements")
SWITCH: Rule = (lambda value: isinstance(value, bool), "true or false")
DIRECTIONS: Rule = (
    lambda value: isinstance(value, bool) or value == FORWARD,
    'true, false or "forward"',
)
WORDS: Rule = (_list_of(_is_word), "a list of words")
RATES: Rule = (lambda value: _list_of(_is_number)(value) and len(value) == 2, "two numbers above 0")
COUNTS: Rule = (lambda value: _list_of(_is_count)(value) and len(value) == 2, "two whole numbers")
WIDTHS: Rule = (_list_of(_is_count), "a list of whole numbers")
DURATION: Rule = (_is_duration, 'a duration such as "75 us"')
SHARES: Rule = (_table_of(_is_fraction), "a table of shares above 0 and no more than 1")
TIMES: Rule = (_table_of(_is_duration), 'a table of durations such as "0.2 ns"')
SIZE: Rule = (_is_size, 'a size such as "64 MiB"')
VALUES: Rule = (
    lambda value: isinstance(value, list) and bool(value) and not any(map(_is_table, value)),
    "a list of values of the plan's key",
)
DISPATCHERS: Rule = (
    _list_of(lambda each: each in CHOICES["dispatcher"]),
    f"a list of some of {', '.join(CHOICES['dispatcher'])}",
)
APART: Rule = (
    _list_of(_is_apart),
    'a list of tables of a plan\'s keys, such as {overlap = "a2a", recompute = "full"}',
)
NEEDS: Rule = (
    _list_of(_is_need),
    'a list of tables such as {when = {tp = ">1", experts = ">0"}, needs = {sp = true}}',
)
CAN: dict[str, Rule] = {
    "apart": APART,
    "needs": NEEDS,
    "even_layers": SWITCH,
    "overlaps_always": SWITCH,
    "experts_fill_axes": SWITCH,
    "overlap": (_list_of(lambda each: each in EVERY), f"a list of some of {', '.join(EVERY)}"),
    "order": (_list_of(_is_order), 'a list of orders such as "tp-dp-pp"'),
    "recompute": (_list_of(lambda each: each in AGAIN), f"a list of some of {', '.join(AGAIN)}"),
    **{key: VALUES for key in KEYS if key not in TEXTS_OF_SEVERAL},
    "axes": (_list_of(lambda each: each in AXES), f"a list of some of {', '.join(AXES)}"),
    "schedules": (
        _list_of(lambda each: each in CHOICES["schedule"]),
        f"a list of some of {', '.join(CHOICES['schedule'])}",
    ),
    "zero": (_list_of(lambda each: each in range(4)), "a list of some of 0, 1, 2, 3"),
    "dispatchers": DISPATCHERS,
    "searched_dispatchers": DISPATCHERS,
}
VOCABULARY: dict[str, Rule] = {"multiple": COUNT, "times_tp": SWITCH, "cut": SWITCH}
MESSAGES: Rule = (
    lambda value: value in FRAMEWORKS,
    f"one of {', '.join(filter(None, FRAMEWORKS))}",
)
EXCHANGE: Rule = (lambda value: value in OF_STACKS, f"one of {', '.join(OF_STACKS)}")
GRAPHS: Rule = (
    _list_of(lambda each: each in SCOPES),
    f"a list of some of {', '.join(SCOPES)}",
)
REDUCE_DTYPES = (SUMS, TRAINING)
REDUCE_DTYPE: Rule = (REDUCE_DTYPES.__contains__, f"one of {', '.join(REDUCE_DTYPES)}")
KERNELS: dict[str, Rule] = {
    "fused": WORDS,
    "pace": NUMBER,
    "scatter_gather": DIRECTIONS,
    "messages": MESSAGES,
    "launches_of_slice": COUNT,
    "reduce_dtype": REDUCE_DTYPE,
    "early_stop": SWITCH,
    "gathers_ahead": SWITCH,
    "coalesced": SWITCH,
    "one_by_one": SWITCH,
    "whole_owners": SWITCH,
    "context_steps": SWITCH,
    "fp8_pads": SWITCH,
    "once_a_step": SWITCH,
    "scores_of_all": SWITCH,
    "choices_in_a_row": SWITCH,
    "exchange": EXCHANGE,
    "graphs": GRAPHS,
    "tuned_norms": WIDTHS,
}
EXCHANGE_KERNELS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("there", "back", "there_across", "back_across"), _is_by_size),
    "back_row": _is_duration,
    "all_probabilities": SWITCH[0],
}
BY_NAME: dict[str, Rule] = {
    "host": DURATION,
    "host_with_experts": DURATION,
    "attention": RATES,
    "attention_half": RATES,
    "attention_half_unmasked": RATES,
    "passes": NUMBER,
    "launches": COUNT,
    "payloads": NUMBER,
    "fp8_payloads": NUMBER,
    "fp8_casts": COUNTS,
    "host_of_expert": DURATION,
    "fp8_host_of_expert": DURATION,
    "copies": COUNTS,
    "memory_shares": SHARES,
    "place_times": TIMES,
    "element_times": TIMES,
    "exchange_kernels": (_is_exchange, f"a table of {', '.join(EXCHANGE_KERNELS)}"),
}
NAMES = {"payloads": COLLECTIVES, "fp8_payloads": COLLECTIVES}  # of BY_NAME, where few are known
SOFTMAX: dict[str, Rule] = {"multiple": COUNT, "longest": COUNT}
SOFTMAX_BY_NAME: dict[str, Rule] = {"fused": NUMBER, "steps": NUMBER, "launches": COUNT}
MEMORY: dict[str, Rule] = {
    "sharded_masters": SWITCH,
    "step_copies": SWITCH,
    "frees_gradients": SWITCH,
    "update_temporaries": COUNT,
    "loss_bytes": COUNT,
    "inner_activations": WORDS,
    "gradients_until_end": SWITCH,
    "gradient_buckets": SWITCH,
    "fp8_weights": SWITCH,
    "keeps_unread": SWITCH,
    "sub_group_size": ELEMENTS,
    "reduce_bucket_size": ELEMENTS,
}
MEMORY_BY_NAME: dict[str, Rule] = {"libraries": SIZE}
LOG: dict[str, Rule] = {
    "flops": (COUNTS_OF_LOGS.__contains__, f"one of {', '.join(COUNTS_OF_LOGS)}")
}
SELECTIVES = (SELECTIVE, PER_OP)
UNPLANNED = (*AXES, "batch", "mbs", "stage_layers")
PLANNED = tuple(key for key in KEYS if key not in UNPLANNED)
TABLES: dict[str, tuple[str, ...]] = {
    "plan": (*PLANNED, *NO_KEYS),
    "vocabulary": tuple(VOCABULARY),
    "kernels": (*KERNELS, *BY_NAME, "softmax"),
    "can": tuple(CAN),
    "memory": (*MEMORY, *MEMORY_BY_NAME),
    "log": tuple(LOG),
}
OTHERWISE = "otherwise"  # a table of free keys
OPTIONS, RELEASES = "options", "releases"  # tables of documents
EXCLUDES = "excludes"  # of an option: those that it cannot be combined with
TEXTS = ("base", "title", "source", "family")


def check_document(document: Mapping[str, Any], origin: str) -> None:
    """A StackError where a file's document is none of a stack."""
    for key, table in document.items():
        if key in TEXTS:
            _check(table, (_is_word, "text"), f"{origin}: {key}")
        elif key in (OPTIONS, RELEASES):
            _check(table, (_table_of(_is_table), "a table of tables"), f"{origin}: {key}")
            for name, own in table.items():
                check_document(own, f"{origin}: {key}.{name}")
        elif key == EXCLUDES:
            _check(table, WORDS, f"{origin}: {key}")
        elif key == OTHERWISE:
            _check(table, (_table_of(_is_word), "a table of stacks' names"), f"{origin}: {key}")
        elif key not in TABLES or not isinstance(table, Mapping):
            raise StackError(f"{origin}: {key} is not a table of a stack; {', '.join(TABLES)} are")
        else:
            _check_keys(table, TABLES[key], f"{origin}: {key}")
    _check_plan(document.get("plan", {}), origin)
    kernels = document.get("kernels", {})
    for rules, named, key in (
        (VOCABULARY, {}, "vocabulary"),
        (CAN, {}, "can"),
        (KERNELS, BY_NAME, "kernels"),
        (MEMORY, MEMORY_BY_NAME, "memory"),
        (LOG, {}, "log"),
    ):
        _check_table(document.get(key, {}), rules, named, f"{origin}: {key}")
    if "softmax" in kernels:
        where = f"{origin}: kernels.softmax"
        _check(kernels["softmax"], (lambda each: isinstance(each, Mapping), "a table"), where)
        every = (*SOFTMAX, *SOFTMAX_BY_NAME)
        _check_keys(kernels["softmax"], every, where)
        if missing := [key for key in every if key not in kernels["softmax"]]:
            raise StackError(f"{where} has no {missing[0]}")
        _check_table(kernels["softmax"], SOFTMAX, SOFTMAX_BY_NAME, where)


def _check_plan(plan: Mapping[str, Any], origin: str) -> None:
    for key, value in plan.items():
        if key == WHERE:
            _check_where(value, f"{origin}: plan.{WHERE}")
        elif key == SPLIT:
            _check(value, (BY_COST.__eq__, f'"{BY_COST}"'), f"{origin}: plan.{SPLIT}")
        elif key != SELECTIVE:
            plan_value(key, value)
        elif value not in SELECTIVES:
            raise StackError(f"{origin}: plan.selective must be one of {', '.join(SELECTIVES)}")


def _check_where(rules: Any, where: str) -> None:
    _check(rules, (_list_of(lambda each: isinstance(each, Mapping)), "a list of tables"), where)
    for rule in rules:
        when = rule.get(WHEN)
        _check(when, (lambda each: isinstance(each, Mapping), "a table"), f"{where}.{WHEN}")
        _check_keys({key: value for key, value in rule.items() if key != WHEN}, PLANNED, where)
        _check_keys(when, KEYS, f"{where}.{WHEN}")
        for key, value in rule.items():
            if key != WHEN:
                plan_value(key, value)
        for key, value in when.items():
            for each in value if isinstance(value, list) and key != "overlap" else [value]:
                plan_value(key, each[1:] if is_bound(each) else each)


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise StackError(f"{where}.{key} is not a key of a stack{nearest(key, known)}")


def _check_table(
    table: Mapping[str, Any], rules: Mapping[str, Rule], named: Mapping[str, Rule], where: str
) -> None:
    for key, value in table.items():
        if key in rules:
            _check(value, rules[key], f"{where}.{key}")
        elif key in named:
            _check(value, (lambda each: isinstance(each, Mapping), "a table"), f"{where}.{key}")
            _check_keys(value, NAMES.get(key, tuple(value)), f"{where}.{key}")
            for name, each in value.items():
                _check(each, named[key], f"{where}.{key}.{name}")


def _check(value: Any, rule: Rule, where: str) -> None:
    holds, words = rule
    if not holds(value):
        raise StackError(f"{where} must be {words}")
