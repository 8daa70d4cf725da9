"""What a command that writes versions, labels or configurations cannot do."""


class ExportError(Exception):
    """Nothing was published or changed; the message is for the user."""
