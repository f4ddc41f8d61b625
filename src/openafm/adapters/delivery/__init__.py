"""How adapters get from one machine to another: a signed manifest and files by plain HTTP."""
