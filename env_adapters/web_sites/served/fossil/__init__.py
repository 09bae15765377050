"""Content of the code host's Fossil repositories: records, ticket pages, and dates instead of ages."""
