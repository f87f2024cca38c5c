"""The machine: devices, links, NICs and switches as a graph, one TOML file per machine."""
