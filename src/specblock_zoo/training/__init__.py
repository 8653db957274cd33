"""Training a drafter on cached target features; the only Lightning code below the command line and the data module."""
