"""Files of users and machine files: read, checked, and written whole."""
