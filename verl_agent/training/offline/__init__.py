"""Training on episodes that exist already: verl's SFT trainer with other data, and with another loss."""
