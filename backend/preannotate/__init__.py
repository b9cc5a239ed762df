"""Bulk predictions for a file or a project: by processes of one machine or on a Ray cluster, resumable.

docs/decisions/0016-preannotate.md says why it is built this way.
"""
