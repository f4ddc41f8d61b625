"""Types as schemas: guides, structures, generated content and JSON Schema (report 7)."""
