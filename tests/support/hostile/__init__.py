"""One user does his worst while another, who is measured, works."""
