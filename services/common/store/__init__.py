"""What a service keeps: the record store port and how one is opened."""
