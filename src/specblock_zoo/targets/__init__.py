"""What must be known of a target family, and how to run a frozen target."""
