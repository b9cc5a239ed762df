"""What Label Studio sends and what it was asked for become labels: events, and reconciliation."""
