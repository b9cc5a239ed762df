"""Reconciliation: what Label Studio's webhooks did not deliver is found by asking, and put into the same inbox.

A failed webhook is lost for good. So the server is asked for every task that changed since the last time, a page at a
time, and what differs from what the store knows becomes an event of webhook shape. There is one way in, and a
reconciliation that finds nothing stores nothing. Now and then all numbers are compared, because a deleted task does
not show up among those that changed.
"""

from backend.sync.reconcile import Synced, run_sync, sync_project

__all__ = ["Synced", "run_sync", "sync_project"]
