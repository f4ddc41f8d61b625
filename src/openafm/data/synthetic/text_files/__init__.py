"""Read the hand-written text files of the corpus (docs/corpus-authoring.md)."""
