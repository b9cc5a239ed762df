"""Every exception the product raises on purpose, outside the tagger.

A message says what was expected, what was got and what to do. No message carries task text or a secret.
"""


class BackendError(Exception):
    """Base class: catch this to catch everything `backend` raises on purpose."""


class InvalidSetting(BackendError):
    """A setting whose value cannot be used; the message names it, what was expected and what was got."""


class InvalidStarter(BackendError):
    """A starter calibration that cannot be read, or that was written by another release."""


class InvalidInput(BackendError):
    """A file or line given on the command line that does not hold what the command reads."""


class InvalidEvent(BackendError):
    """An event that cannot be stored because it is not a JSON object of bearable depth."""


class StoreError(BackendError):
    """Base class of everything the store raises on purpose."""


class StoreFull(StoreError):
    """The disk (or the database's own limit) is full: nothing of the transaction was kept."""


class StoreBusy(StoreError):
    """Another process held a lock for longer than the waiting time: nothing of the transaction was kept."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or the connection was lost before the transaction was confirmed."""


class StoreConflict(StoreError):
    """A constraint of the database refused the write, or a row changed underneath it."""


class StoreAgain(StoreError):
    """The database rolled the transaction back to resolve a conflict (a deadlock): running it again is safe."""


DATABASE_TROUBLE = (StoreAgain, StoreBusy, StoreFull, StoreUnavailable)
"""What is nobody's fault but the database's: whatever was under way is to be tried again, and is not blamed."""


class InvalidScores(StoreError):
    """Scores that are no numbers: the model's output is broken."""


class SchemaMismatch(StoreError):
    """The database's schema is not the one this version works with; the message names the command to run."""


class LeaseLost(StoreError):
    """Another process took the event or job over, so the work of this holder must not be committed."""


class NotFound(StoreError):
    """A row that was asked for by its id does not exist."""


class BackupFailed(StoreError):
    """The backup could not be made; no file was left under the name that was asked for."""


class InvalidLabelConfig(BackendError):
    """A label config that cannot be read, or that has no place for a class of the model."""


class ModelUnavailable(BackendError):
    """The model is not there (yet): it is still loading, or it could not be loaded."""


class Overloaded(BackendError):
    """More predictions wait than the service holds threads for."""


class LabelStudioError(BackendError):
    """A call to Label Studio that failed; `status` is None when no answer came, `asked` is method and path."""

    def __init__(self, message: str, *, status: int | None, asked: str) -> None:
        super().__init__(message)
        self.status, self.asked = status, asked
