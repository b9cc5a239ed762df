"""What runs inside the service: the model, project views, turns, cache, and the record of what was served.

Nothing here knows about HTTP; `backend.http` calls `service.Service`.
"""
