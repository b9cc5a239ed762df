"""After a new version: Label Studio is made to agree with it, and asked again until it does.

Title of the backend, version of the project, predictions of unlabelled tasks. New predictions are added before old
ones are removed, and old ones are removed only when nobody can have them open any more: Label Studio refuses an
annotation whose prediction is gone, and nothing tells us who has a task open (docs/decisions/0008-label-studio.md).
"""

from backend.publish.publishing import Bulk, Published, publish_project, run_publish

__all__ = ["Bulk", "Published", "publish_project", "run_publish"]
