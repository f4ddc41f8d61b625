"""`openafm <verb>`: imports nothing heavy until a verb needs it."""
