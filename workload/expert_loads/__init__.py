"""How unevenly tokens choose experts: a measured histogram, and what follows for ranks."""
