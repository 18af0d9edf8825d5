"""Looking at a cluster and changing it; `Admin` is in admin.py."""
