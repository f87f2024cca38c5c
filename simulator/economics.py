"""What a step costs beside its time: nodes that are charged, and the energy they draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from topologies.machine import Machine


@dataclass(frozen=True, slots=True)
class Training:
    """What it takes to train on `tokens` tokens, in `steps` whole steps without a break.

    Not modelled: checkpoints, failures, restarts, queues and evaluation.
    """

    tokens: float
    steps: int
    time_s: float
    node_s: float
    energy_j: float | None

    def as_dict(self) -> dict[str, Any]:
        """The run's cost as it stands in JSON."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "time_s": self.time_s,
            "node_s": self.node_s,
            "energy_j": self.energy_j,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """One step's cost: whole `nodes` are charged for `step_s`; without facts on power, no energy.

    `busy` is the share of the step in which a device computes.
    """

    nodes: int
    step_s: float
    busy: float
    energy_j_per_step: float | None

    @property
    def node_s_per_step(self) -> float:
        """Seconds of all nodes together."""
        return self.nodes * self.step_s

    @property
    def power_w(self) -> float | None:
        """What the job draws on average."""
        return None if self.energy_j_per_step is None else self.energy_j_per_step / self.step_s

    def training(self, tokens: float, tokens_per_step: int) -> Training:
        """The cost of training on that many tokens."""
        steps = math.ceil(tokens / tokens_per_step)
        energy = self.energy_j_per_step
        return Training(
            tokens=tokens,
            steps=steps,
            time_s=steps * self.step_s,
            node_s=steps * self.node_s_per_step,
            energy_j=None if energy is None else steps * energy,
        )

    def as_dict(self) -> dict[str, Any]:
        """The cost as it stands in JSON."""
        return {
            "nodes": self.nodes,
            "node_s_per_step": self.node_s_per_step,
            "energy_j_per_step": self.energy_j_per_step,
            "power_w": self.power_w,
            "busy": self.busy,
        }


def cost_of(machine: Machine, devices: int, *, step_s: float, busy_s: float) -> Cost:
    """The cost of a step of `step_s` on `devices` that compute for `busy_s` of it.

    Energy is step_s times what the job's nodes and its share of the switches draw.
    """
    nodes = math.ceil(devices / machine.devices_per_node)
    busy = busy_s / step_s
    drawn = power_w(machine, nodes, devices * busy)
    return Cost(nodes, step_s, busy, None if drawn is None else step_s * drawn)


def power_w(machine: Machine, nodes: int, busy_devices: float) -> float | None:
    """What `nodes` draw on which `busy_devices` compute, and switches; None where no file says it.

    P = min(n node_idle + d (max - idle), n node_max) + n switches/machine nodes * switch, with n
    nodes and d busy devices; node_idle includes its idle devices.

    Source: the component model of ExaDigiT/RAPS (github.com/ExaDigiT/RAPS, power.py), linear in the
    use of each device; switches are shared evenly by all nodes. Not modelled: what CPUs, memory and
    NICs draw above idle, how power differs among ops (a device that communicates or waits counts as
    idle), losses of power supplies, cooling, file systems.
    """
    device, node = machine.device.power, machine.power
    if device is None or node is None:
        return None
    drawn = nodes * node.node_idle_w + busy_devices * (device.max_w - device.idle_w)
    switches = nodes * machine.interconnect.switches / machine.nodes
    return min(drawn, nodes * node.node_max_w) + switches * node.switch_w
