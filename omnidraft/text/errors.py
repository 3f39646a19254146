"""The package's one exception."""


class OmnidraftError(ValueError):
    """What is wrong, why, and what to do about it, in one line that can be printed as it is."""
