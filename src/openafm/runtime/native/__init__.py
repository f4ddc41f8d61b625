"""The native CPU runtime: compressed on-device models at the speed of memory, without torch (report 6, 7)."""
