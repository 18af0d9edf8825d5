"""What a broker admits: overload, access control, and when an append is answered."""
