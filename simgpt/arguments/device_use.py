"""Options of how ranks use their devices, and what is refused of them before a rank starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from executor.launching.device_use import DeviceUse
    from executor.launching.task_specs import Job

Command = TypeVar("Command", bound=Callable[..., Any])
GRAPHS = "Capture a step on the GPU, and replay it as a CUDA graph from then on."
BIND = "numa: keep each rank on the cores of its GPU's socket."
ATTENTION = "Kernels of the attention core; auto: flash where they suit the model, else math."
_OPTIONS = (
    click.option("--cuda-graphs", is_flag=True, help=GRAPHS),
    click.option(
        "--bind", type=click.Choice(["none", "numa"]), default="none", show_default=True, help=BIND
    ),
    click.option(
        "--attention-backend",
        type=click.Choice(["auto", "flash", "cudnn", "math"]),
        default="auto",
        show_default=True,
        help=ATTENTION,
    ),
)


def device_use_options(function: Command) -> Command:
    """Give a command --cuda-graphs, --bind and --attention-backend."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def device_use_of(how: dict[str, Any]) -> DeviceUse:
    """The options as every rank is told of them."""
    from executor.launching.device_use import DeviceUse

    return DeviceUse(
        cuda_graphs=how["cuda_graphs"], bind=how["bind"], attention=how["attention_backend"]
    )


def check_device_use(job: Job, *, traced: bool) -> None:
    """Refuse what the run's devices, where they are known by now, cannot do."""
    from executor.errors import LaunchError
    from executor.launching.device_use import NUMA, attention_of, check_graphs, check_host_use

    use = job.device_use
    # With a launcher each rank sees its own GPUs; of these only what is known to be a CPU is not.
    device = "cpu" if job.device == "cpu" else "cuda"
    check_host_use(job.gpt, job.plan, device)
    if use.bind == NUMA and device == "cpu":
        raise LaunchError("--bind numa binds ranks to their GPUs' sockets, and this run has no GPU")
    if use.cuda_graphs:
        check_graphs(job.gpt, job.plan, device, traced=traced, steps=job.steps)
    if use.attention != "auto":
        attention_of(use, job.gpt, job.plan, device)
