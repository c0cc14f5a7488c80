"""What a line would run, and whether the policy lets it."""
