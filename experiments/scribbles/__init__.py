"""What a loss without labels is worth where only scribbles are labelled."""
