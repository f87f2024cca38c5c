"""How rows of tokens get to the ranks of their experts."""
