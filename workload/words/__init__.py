"""Words for keys of a plan and fields of a model: those of former versions, and of other tools."""
