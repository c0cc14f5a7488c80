"""What the hooks of `wisp.pytest_plugin` do, imported when one of them has something to do."""
