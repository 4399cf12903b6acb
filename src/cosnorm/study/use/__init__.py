"""What a finished run is for: predictions, and exports to other programs."""
