"""The features of the report as tasks on small held-out sets of our own (`sets/`, with a card)."""
