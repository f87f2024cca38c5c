"""Whole training runs in a report: their calendars, read and shown."""
