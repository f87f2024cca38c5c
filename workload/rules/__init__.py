"""Update rules: how a step changes the parameters, one module and one row of a table each."""
