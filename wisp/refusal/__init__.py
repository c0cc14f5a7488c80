"""Why a confined command failed: what its error output names, checked against what the confinement allows."""
