"""Configs, plugins, errors, files and progress. Imports nothing else of openafm."""
