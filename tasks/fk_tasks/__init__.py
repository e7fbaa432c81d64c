"""Tasks by operator family, one module each. A module is found because it is here; it needs no entry elsewhere."""
