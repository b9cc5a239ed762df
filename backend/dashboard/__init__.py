"""The pages that a project lead keeps open: rendered here, charts too; no script, nothing from elsewhere."""
