"""From played episodes to the rows that verl trains on."""
