"""One user attacks while another, who is measured, works."""
