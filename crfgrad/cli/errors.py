"""What ends a command with a sentence instead of a traceback."""


class CommandError(Exception):
    """One sentence: what is wrong with which input, and what to do."""


def sentence(error: Exception) -> str:
    """What went wrong, with the kind of error where its text alone says little."""
    text = " ".join(str(error).split())
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"
