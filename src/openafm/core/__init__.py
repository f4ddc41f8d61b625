"""Ground floor: configs, errors, atomic files, progress. Imports nothing else of openafm."""
