"""Measurements: one file per question; each prints a table, timings also write JSON."""
