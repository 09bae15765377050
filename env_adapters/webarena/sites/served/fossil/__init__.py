"""What makes a Fossil repository the code host of the world: its records, its ticket pages, its settings."""
