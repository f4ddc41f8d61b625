"""Reading a page: the letters that an encoder finds in its views, their lines, and the text of them."""
