"""The background process: events become labels and scores, and jobs are done."""
