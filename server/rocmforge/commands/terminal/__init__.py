"""What commands share in front of people: messages typed, bars, tables."""
