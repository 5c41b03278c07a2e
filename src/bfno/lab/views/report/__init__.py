"""What runs show together: one page to read or send, and the same for a terminal."""
