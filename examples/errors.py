"""The one exception that an example shows to its user as a message instead of a traceback."""


class UsageError(Exception):
    """Something that the user can put right: the message says what, in a line or two."""
