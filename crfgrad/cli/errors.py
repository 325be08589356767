"""What ends a command with a sentence instead of a traceback."""


class CommandError(Exception):
    """One sentence: what is wrong with which input, and what to do."""
