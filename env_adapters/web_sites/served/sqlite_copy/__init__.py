"""Database backend for Django: SQLite with a separate file for each copy of the site."""
