"""Every method on labelled data: decode once, then splits, tables, plots and a report."""
