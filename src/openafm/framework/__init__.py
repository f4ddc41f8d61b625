"""What app developers import as `openafm`: typed values out of an on-device model (report 7)."""
