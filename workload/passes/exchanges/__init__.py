"""Passes over the exchanges of experts' rows: what runs beside them."""
