"""Looks at this machine and at wisp itself, runs the probes, and says what holds. It never repairs anything."""
