"""Admission: overload protection, access control, and the time at which an append is acknowledged."""
