"""How served sets do on the labels that come back: live coverage, drift, alarms, reports."""
