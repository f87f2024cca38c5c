"""MeZO: two losses, at parameters moved along a random direction and against it, and no gradient.

All parameters w are moved in place by eps z, z being standard normal numbers, and the batch goes
forward through the model; then by -2 eps z, and it goes forward again. The difference of the two
losses over 2 eps is the gradient's projection g on z, and after moving back by eps z each parameter
becomes w - lr (g z + decay w). z is drawn from seed, step and place whenever it is wanted, and
never kept; so a device has parameters and the activations of a forward pass, and ranks exchange two
numbers. There are no master copies: in bf16, parameters are moved and updated as they are, and
those near 1, such as gains, hardly move (the authors train in fp16).

Ranks that hold copies of a parameter move them alike, and every rank's losses count in g. The loss
of a step is the mean of the two, which differs from that between them by terms of eps^2.

Source: Malladi et al., Fine-Tuning Language Models with Just Forward Passes (2305.17333),
algorithm 1; princeton-nlp/MeZO, large_models/trainer.py, zo_step and zo_update (decay; moving back
and updating are two passes there, one here), run.py (eps).
Not modelled: the arithmetic of drawing z, several directions a step, the adaptive variants.
"""

from __future__ import annotations

from workload.rules import zeroth_order
from workload.rules.rule import Update, UpdateRule, ZerothOrder

EPS = 1e-3

UPDATE = Update(zeroth_order.UPDATE, ())
RULE = UpdateRule(
    name="mezo",
    words="two losses along a random direction, without backward passes",
    source="Malladi et al., Fine-Tuning Language Models with Just Forward Passes (2305.17333)",
    matrices=UPDATE,
    others=UPDATE,
    refusal=zeroth_order.refusal,
    zeroth_order=ZerothOrder(EPS),
)
