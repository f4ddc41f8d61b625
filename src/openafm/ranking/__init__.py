"""Which of some choices fits a text, such as labels and tools, and which of its spans is the value of a field."""
