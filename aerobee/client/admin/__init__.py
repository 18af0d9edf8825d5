"""Administrative calls on a cluster; `Admin` is in admin.py."""
