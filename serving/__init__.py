"""Serving: export, rollout, clients, load generator and the local server."""
