"""One recipe of a checkout: of what it is, and where."""

from __future__ import annotations

from topologies.records import record

FLAT, VARIANTS, SIZES, MATRICES = "flat", "variants", "sizes", "matrices"
SCRIPT, FACTORY = "script", "factory"
OF_NEMO = (SCRIPT, FACTORY)


@record
class RecipeKey:
    """One recipe of a checkout: what it is of, and where. `devices` is 0 where its name does not
    say, and `constant` the name of its plan."""

    layout: str
    model: str
    task: str
    gpu: str
    precision: str
    variant: str
    devices: int
    module: str
    function: str
    constant: str = ""

    @property
    def name(self) -> str:
        """The name by which a user asks for it."""
        if self.layout in (MATRICES, SCRIPT):
            devices = f"{self.devices}gpu"
            words = [self.model, self.task, devices, self.gpu, self.precision, self.variant]
            return "_".join(word for word in words if word)
        if self.layout == FLAT:
            return self.function.removesuffix("_config")
        if self.layout == FACTORY:
            return "_".join(part for part in (self.model, self.task, self.variant) if part)
        parts = (self.model, self.task, self.gpu, self.precision, self.variant)
        return "_".join(part for part in parts if part)
