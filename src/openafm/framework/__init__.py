"""The framework for app developers, exported by `openafm`: typed answers of an on-device model (report 7)."""
