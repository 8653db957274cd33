"""The zoo and its cards: typed entries, finding a drafter by name, and cards generated from results."""
