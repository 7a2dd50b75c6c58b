"""What travels: frozen values with an algebra, and the bytes they become."""
