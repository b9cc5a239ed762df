"""Control of risk: what may be left alone, and which tasks nobody needs to open (METHODS 11 and 12)."""
