"""Oblivious HTTP: binary messages, encryption in whole and in chunks, padding."""
