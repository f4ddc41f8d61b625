"""Which of some choices fits a text: labels, tools, none of them."""
