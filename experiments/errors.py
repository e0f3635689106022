"""The one exception that a user is meant to read: `launch.py` prints it as a line and exits."""


class UserError(Exception):
    """Something the user asked for cannot be done. The message is one line that names the field,
    the value, and what would work; nothing has been compiled or written when it is raised."""


def described(error: BaseException) -> str:
    """Its type and message, in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
