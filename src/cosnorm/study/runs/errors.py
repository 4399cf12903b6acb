"""What can go wrong with a run, as errors whose message is one readable line."""


class ConfigError(ValueError):
    """A setting that no run can have; the message gives the rule, the value and the fix."""


class RunError(Exception):
    """A run that cannot begin or go on; what it had saved before stays as it is."""


class RunWarning(UserWarning):
    """A run that is used, though it is not all that its user may take it for."""


class StorageError(RunError):
    """A folder or file that cannot be read or written."""


class InUseError(StorageError):
    """A folder that another process writes to."""


class DamagedFile(StorageError):
    """A file that is not what was written, as its storage has found."""
