"""How a plan splits experts and sequences over ranks: axes, and what is refused."""
