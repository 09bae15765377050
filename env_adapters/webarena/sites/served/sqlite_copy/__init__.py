"""A database backend of Django: SQLite, with a file of its own for each copy of the site."""
