"""The options by which `predict` and `why` are asked for steps with noise, and their answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from simgpt import options, tables
from topologies.records import record

if TYPE_CHECKING:
    from simgpt.step import Step
    from simulator.noise.noise import Noise
    from simulator.noise.variability import Variability
    from simulator.predict import Prediction
    from topologies.machine import Machine

Command = TypeVar("Command", bound=Callable[..., Any])
KEYS = ("noise", "slow", "spread", "samples", "seed")
SAMPLES, MOST_SAMPLES = 30, 10_000
MOST_SEED = 2**32 - 1
LEAST = 0.0005  # of the excess: parts below are left out of the text


@record
class NoiseQuestion:
    """The noise that was asked for, from how many samples and which seed."""

    noise: Noise
    samples: int
    seed: int


class Share(click.ParamType[float]):
    """A share of a duration: `2%`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        share = share_of(str(value))
        if share is None:
            self.fail(f"{value} is not a share from 0% to 100%; write it like 2%", param, ctx)
        return share


class SlowDevices(click.ParamType[tuple[float, float]]):
    """A share of the devices, and by which share they are slower: `0.1%:5%`."""

    name = "share:slower"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        share, slower = (share_of(text) for text in f"{value}:".split(":")[:2])
        if share is None or slower is None or str(value).count(":") != 1:
            self.fail(
                f"{value} is not a share of the devices with their slowdown, both from 0% to 100%; "
                "write it like 0.1%:5%", param, ctx
            )  # fmt: skip
        return share, slower


def share_of(text: str) -> float | None:
    """A share from its text; None if that is none.

    >>> share_of("2%"), share_of("2"), share_of("101%")
    (0.02, None, None)
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / 100
    except ValueError:
        return None
    return share if percent and not rest and 0 <= share <= 1 else None


def noise_options(function: Command) -> Command:
    """Give a command the options that ask for noise."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option("--noise", type=Share(), help="Draw steps with jitter of each op and rank: 2%."),
    click.option(
        "--slow",
        type=SlowDevices(),
        help="Draw steps with a share of the devices slower, and by how much: 0.1%:5%.",
    ),
    click.option("--spread", type=Share(), help="Draw steps with devices that differ: 1%."),
    click.option(
        "--samples",
        type=click.IntRange(2, MOST_SAMPLES),
        help=f"How many steps to draw ({SAMPLES}); by itself with the noise in the machine's file.",
    ),
    click.option("--seed", type=click.IntRange(0, MOST_SEED), help="Draw other samples (0)."),
)


def noise_asked(how: Mapping[str, Any], machine: Machine) -> NoiseQuestion | None:
    """The noise that a command's options ask for; None if they ask for none."""
    jitter, slow, spread = (how[key] for key in KEYS[:3])
    if how["samples"] is None and jitter is None and slow is None and spread is None:
        if how["seed"] is not None:
            raise click.UsageError("--seed needs --noise, --slow, --spread or --samples")
        return None
    from simulator.noise.noise import Noise

    if jitter is None and slow is None and spread is None:
        known = machine.device.variability
        if known is None:
            raise click.UsageError(
                f"--samples needs --noise, --slow or --spread: the file of {machine.name} has no "
                "device.variability"
            )
        noise = Noise(known.noise, known.slow_share, known.slow_by, known.spread)
    else:
        share, slow_by = slow or (0.0, 0.0)
        noise = Noise(jitter or 0.0, share, slow_by, spread or 0.0)
    return NoiseQuestion(noise, how["samples"] or SAMPLES, how["seed"] or 0)


def refuse(how: Mapping[str, Any], option: str) -> None:
    """Refuse the options beside one that they do not go with."""
    given = [key for key in KEYS if how[key] is not None]
    if given:
        raise click.UsageError(f"{option} cannot be combined with --{given[0]}")


def slowest_already(machine: Machine) -> str:
    """What to say of a machine on which predictions count the slowest device already."""
    if not machine.device.slowest:
        return ""
    return (
        f"compute on {machine.name} is that of the slowest device already (device.slowest); what "
        "is drawn comes on top of it"
    )


@record
class NoiseAnswer:
    """What a command adds to its answer: keys of its record, and text behind its own."""

    record: dict[str, Any]
    text: str


def answered(how: Mapping[str, Any], prediction: Prediction, step: Step) -> NoiseAnswer:
    """Steps drawn with the noise that the options ask for, if any."""
    machine = step.machine
    question = noise_asked(how, machine)
    if question is None:
        return NoiseAnswer({}, "")
    from simgpt.progress import Ticker
    from simulator.noise.variability import variability

    if already := slowest_already(machine):
        options.note(already)
    with Ticker() as ticker:
        found = variability(
            prediction.gpt,
            prediction.plan,
            machine,
            question.noise,
            samples=question.samples,
            seed=question.seed,
            placement=step.placement,
            progress=lambda done, of: ticker("drawing steps with noise", done=done, of=of),
            stack=prediction.stack,
            op_seconds=step.op_seconds,
        )
    return NoiseAnswer({"variability": found.as_dict()}, f"\n\n{describe_noise(found)}")


def describe_noise(found: Variability) -> str:
    """The answer as a person reads it."""
    from simulator.noise.played import cause_of

    low, high = found.interval_s
    slow = found.slow_device
    facts = [
        ("step without noise", tables.seconds(found.noise_free_s)),
        ("median step", tables.seconds(found.median_s)),
        ("90 % of the samples", f"{tables.seconds(low)} to {tables.seconds(high)}"),
        ("mean cost of the noise", _signed(found.mean_cost)),
        (f"one device {_percent(slow.slower_by)} slower", _signed(found.slow_device_cost)),
        ("waiting grows most at", _place(found.amplifier)),
    ]
    head = (
        f"{tables.several(len(found.steps_s), 'sample')}, seed {found.seed}: {noise_words(found)}"
    )
    text = f"{tables.paragraph(head, indent='  ')}\n{tables.table([], facts, first=30)}"
    total = sum(found.excess_s.values())
    rows = [
        (cause_of(key), tables.seconds(excess), tables.percent(excess / total))
        for key, excess in found.excess_s.items()
        if total > 0 and abs(excess / total) >= LEAST
    ]
    if not rows:
        return text
    columns = ["what the noise adds, mean rank", "time", "share"]
    return f"{text}\n\n{tables.table(columns, rows, first=30)}"


def _place(axes: str | None) -> str:
    return "nothing" if axes is None else "stages" if axes == "pp" else f"collectives of {axes}"


def noise_words(found: Variability) -> str:
    """The noise in words."""
    noise = found.noise
    parts = [
        f"jitter {_percent(noise.jitter)}" * bool(noise.jitter),
        f"{_percent(noise.slow_share)} of devices {_percent(noise.slow_by)} slower"
        * bool(noise.slow_share * noise.slow_by),
        f"spread of devices {_percent(noise.spread)}" * bool(noise.spread),
    ]
    return ", ".join(part for part in parts if part) or "no noise"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.2f} %"
