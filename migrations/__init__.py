"""Schema migrations (Alembic). Shipped inside the wheel; run by `surespan db upgrade`."""
