"""The pages that a project lead keeps open: rendered here, charts by plotly.js, nothing from another machine."""
