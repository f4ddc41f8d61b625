"""Commands on bundles and adapters."""
