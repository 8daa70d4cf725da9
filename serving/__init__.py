"""Export, local server and clients; nothing is imported before it is needed."""
