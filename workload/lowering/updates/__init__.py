"""Ops that update parameters, of each update rule (`workload/rules`)."""
